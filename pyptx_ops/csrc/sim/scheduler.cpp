// Who goes next: clusters, warps, groups of lanes and copies, in an order that the policy and the seed choose.
#include <algorithm>
#include <numeric>

#include "machine.h"
#include "registers.h"

namespace sim {
namespace {

std::string lanes_of(u32 mask) {
  if (mask == ALL) return "all lanes";
  std::string text = "lanes";
  for (int l = 0; l < LANES; ++l)
    if (mask >> l & 1) text += " " + std::to_string(l);
  return text;
}

}  // namespace

std::string place_of(const Warp& warp) {
  const u32* id = warp.cta->id;
  std::string text =
      "CTA (" + std::to_string(id[0]) + ", " + std::to_string(id[1]) + ", " + std::to_string(id[2]) + ")";
  return text + ", warp " + std::to_string(warp.index);
}

Machine::Machine(const Program& program, Launch launch, Settings settings)
    : program_(program),
      launch_(std::move(launch)),
      settings_(settings),
      random_(settings.seed * 4 + static_cast<u64>(settings.policy)) {
  for (int d = 0; d < 3; ++d)
    if (launch_.grid[d] % program.cluster_shape[d]) throw Problem("launch", "the grid is no multiple of the cluster");
  if (settings_.lint) traffic_.resize(program.code.size() * Traffic::KINDS);
  u32 each = (program.registers + REGISTER_UNIT - 1) / REGISTER_UNIT * REGISTER_UNIT;
  u32 taken = each * ((program.threads() + LANES - 1) / LANES * LANES);
  if (taken > REGISTERS)
    throw Problem("register budget", "a CTA takes " + std::to_string(taken) + " registers, " + std::to_string(each) +
                                         " a thread, and a multiprocessor has " + std::to_string(REGISTERS));
  u64 variables = program.memory.size() - MEMORY_ALIGN - program.constant_bytes;
  if (variables) launch_.segments.push_back({program.memory_base() + program.constant_bytes, variables});
}

void Machine::start_warp(Cta& cta, Warp& warp, int index) {
  warp.cta = &cta;
  warp.index = index;
  u32 left = program_.threads() - static_cast<u32>(index) * LANES;
  warp.alive = left >= LANES ? ALL : (1u << left) - 1;
  warp.groups.resize(1);
  warp.groups[0].mask = warp.alive;
  warp.file.assign(program_.file_bytes, 0xCB);
  warp.valid.assign(program_.slots.size(), 0);
  warp.busy.assign(program_.slots.size(), 0);
  if (!program_.fragments.empty()) warp.fragments.resize(program_.slots.size());
  warp.shown = program_.fragments;
  warp.registers = program_.registers;
  warp.actor = cta.rank * static_cast<u32>(cta.warps.size()) + static_cast<u32>(index);
  for (const Preset& preset : program_.presets) {
    u64 lanes[LANES];
    for (u32 l = 0; l < LANES; ++l) lanes[l] = special(preset, cta, warp, l);
    Operand target;
    target.kind = Operand::reg;
    target.slot = preset.slot;
    if (program_.slots[static_cast<size_t>(preset.slot)].pred)
      write_pred(warp, target, lanes[0] ? ALL : 0, ALL);
    else
      write<u64>(warp, target, lanes, ALL);
  }
}

std::unique_ptr<Cluster> Machine::start(u32 index) {
  auto cluster = std::make_unique<Cluster>();
  cluster->ctas.resize(program_.cluster);
  u32 warps = (program_.threads() + LANES - 1) / LANES;
  cluster->actors = 2 * warps * program_.cluster;
  cluster->number = index;
  for (u32 rank = 0; rank < program_.cluster; ++rank) {
    Cta& cta = cluster->ctas[rank];
    cta.cluster = cluster.get();
    cta.rank = rank;
    place_cta(index, rank, cta.id);
    cta.data.assign(program_.shared_bytes, 0xCB);
    cta.state.assign(program_.shared_bytes, static_cast<u8>(Byte::unset));
    cta.origin.assign(program_.shared_bytes / CHUNK + 1, Origin());
    cta.shadow = std::make_unique<Shadow>(program_.shared_bytes);
    cta.warps.resize(warps);
    for (u32 w = 0; w < warps; ++w) start_warp(cta, cta.warps[w], static_cast<int>(w));
  }
  return cluster;
}

bool Machine::ready(Warp& warp, Group& group) {
  switch (group.wait) {
    case Wait::none: return true;
    case Wait::mbarrier: {
      auto found = warp.cta->barriers.find(group.address);
      if (found != warp.cta->barriers.end() && found->second.phase == group.generation) return false;
      break;
    }
    case Wait::named:
      if (warp.cta->named[group.address].generation == group.generation) return false;
      ++group.pc;  // its arrival has been counted
      acquire(warp, warp.alive, warp.cta->named[group.address].done);
      break;
    case Wait::cluster:
      if (warp.cta->cluster->phase == group.generation) return false;
      break;
    case Wait::warp:
      if ((group.mask & group.wanted) != group.wanted && (warp.alive & group.wanted) == group.wanted) return false;
      break;
    case Wait::warp_barrier: return false;
    case Wait::registers:
      if (warp.cta->register_pool < group.wanted) return false;
      break;
    case Wait::bulk:
      if (!copies_done(warp, group, Copy::store)) return false;
      break;
    case Wait::elements:
      if (!copies_done(warp, group, Copy::element)) return false;
      break;
  }
  group.wait = Wait::none;
  return true;
}

// The group that goes on: of those that need not wait, the one furthest behind, which brings branches back together. Where
// lanes interleave it is any of them, mostly the one that went last.
int Machine::runnable(Warp& warp) {
  int best = -1;
  bool interleaved = settings_.interleave && warp.groups.size() > 1, stays = interleaved && random_() % 8;
  u64 able = 0;
  for (size_t i = 0; i < warp.groups.size(); ++i) {
    Group& group = warp.groups[i];
    if (!(settings_.trace ? traced_ready(warp, group) : ready(warp, group))) continue;
    if (stays && (group.mask & warp.went) == warp.went) return static_cast<int>(i);
    bool takes = best < 0 || group.pc < warp.groups[static_cast<size_t>(best)].pc;
    if (interleaved) takes = random_() % ++able == 0;
    if (takes) best = static_cast<int>(i);
  }
  if (interleaved && best >= 0) warp.went = warp.groups[static_cast<size_t>(best)].mask;
  return best;
}

// Groups that have come to the same instruction become one; where lanes interleave they may, and those do that wait for
// each other.
void Machine::settle(Warp& warp) {
  auto fixed = [](const Group& g) { return g.wait == Wait::named || g.wait == Wait::warp_barrier; };
  auto apart = [&](const Group& a, const Group& b) {
    if (a.wait == Wait::mbarrier || b.wait == Wait::mbarrier)
      return a.wait != b.wait || a.address != b.address || a.parity != b.parity;
    return settings_.interleave && !(a.wait == Wait::warp && b.wait == Wait::warp) && random_() % 2;
  };
  for (size_t i = 0; i < warp.groups.size(); ++i)
    for (size_t j = i + 1; j < warp.groups.size();) {
      Group &a = warp.groups[i], &b = warp.groups[j];
      if (a.pc != b.pc || fixed(a) || fixed(b) || apart(a, b)) {
        ++j;
        continue;
      }
      if (settings_.trace) trace_wait(warp, a), trace_wait(warp, b), a.since = 0;
      a.mask |= b.mask;
      a.wait = Wait::none;
      warp.groups.erase(warp.groups.begin() + static_cast<std::ptrdiff_t>(j));
    }
}

// What a loop that waits for others does: they go on in between.
bool Machine::polls(const Ins& ins) {
  return ins.op == Op::nanosleep || ins.op == Op::mbarrier_test_wait || ins.op == Op::atom ||
         (ins.op == Op::ld && (ins.order & STRONG));
}

bool Machine::turn(Warp& warp, u32 quantum) {
  for (u32 step = 0; step < quantum; ++step) {
    int index = runnable(warp);
    if (index < 0) return step > 0;
    Group& group = warp.groups[static_cast<size_t>(index)];
    int pc = group.pc;
    if (pc >= static_cast<int>(program_.code.size())) {
      Problem problem("exit", "a warp runs past the end of the kernel");
      if (pc) locate(problem, warp, program_.code.back());
      throw problem;
    }
    try {
      execute(warp, group);
      if (settings_.limit && executed > settings_.limit) endless(warp);
    } catch (Problem& problem) {
      locate(std::move(problem), warp, program_.code[static_cast<size_t>(pc)]);
    }
    if (warp.groups.size() > 1) settle(warp);
    if (warp.groups.empty() || polls(program_.code[static_cast<size_t>(pc)])) return true;
  }
  return true;
}

void Machine::endless(const Warp& warp) {
  std::string text = "the launch took more instructions than allowed; a loop may never end";
  if (started_ < order_.size())
    text += "; " + std::to_string(order_.size() - started_) + " of " + std::to_string(order_.size()) +
            " clusters have not started, and nothing promises that they run at the same time as those that have";
  if (warp.groups.size() > 1 && !settings_.interleave)
    text += "; lanes of the warp have diverged, and those ahead stand still unless the run interleaves lanes";
  throw Problem("limit", text);
}

void Machine::locate(Problem problem, const Warp& warp, const Ins& ins) {
  if (problem.line == 0) {
    problem.line = ins.line;
    problem.where = place_of(warp);
    if (lane_ >= 0) problem.where += ", lane " + std::to_string(lane_);
  }
  throw problem;
}

void Machine::deadlock() {
  Problem problem("deadlock", "no warp can go on, and no copy is in flight");
  for (auto& cluster : resident_)
    for (Cta& cta : cluster->ctas)
      for (Warp& warp : cta.warps)
        for (const Group& group : warp.groups) {
          std::string text = place_of(warp) + ", " + lanes_of(group.mask) + ": ";
          int line = program_.code[static_cast<size_t>(group.pc)].line;
          if (group.wait == Wait::mbarrier) {
            const MBarrier& barrier = cta.barriers[group.address];
            text += "waits for parity " + std::to_string(group.parity) + " of the mbarrier at shared memory offset " +
                    std::to_string(group.address - SHARED_BASE) + "; " + describe(barrier);
          } else if (group.wait == Wait::named) {
            const NamedBarrier& barrier = cta.named[group.address];
            text += "waits at CTA barrier " + std::to_string(group.address) + "; " + std::to_string(barrier.arrived) +
                    " of " + std::to_string(barrier.expected) + " threads have arrived";
          } else if (group.wait == Wait::cluster) {
            text += "waits at the cluster barrier; " + std::to_string(cluster->arrived) + " threads have arrived";
          } else if (group.wait == Wait::registers) {
            text += "waits for " + std::to_string(group.wanted) + " registers more, and the CTA has " +
                    std::to_string(cta.register_pool) + " that were given back; a CTA has " +
                    std::to_string(program_.registers) + " a thread in all";
          } else {
            text += "waits for other lanes of its warp";
          }
          if (problem.line == 0) problem.line = line;
          problem.others.emplace_back(line, text);
        }
  throw problem;
}

bool Machine::finished(const Cluster& cluster) {
  for (const Cta& cta : cluster.ctas)
    if (cta.alive()) return false;
  return true;
}

// Nothing asynchronous touches shared memory any more: somebody has waited for it, whatever the run's order was.
void Machine::check_exit(Cluster& cluster) {
  auto left = [&](const std::string& what, int line, const Warp& warp) {
    Problem problem("exit with work in flight", what);
    problem.line = line;
    problem.where = place_of(warp);
    throw problem;
  };
  for (Cta& cta : cluster.ctas) {
    for (Warp& warp : cta.warps)
      for (const WgmmaGroup& group : warp.wgmma_groups)
        if (!group.owned.empty()) left("the warp exits, and it has not waited for this wgmma", group.line, warp);
    for (const auto& [actor, last] : cta.last_copies)
      if (std::none_of(cta.warps.begin(), cta.warps.end(),
                       [&, actor = actor, number = last.number](const Warp& w) { return w.now.seen_of(actor) >= number; }))
        left("the CTA exits, and none of its warps has waited for the copy that this instruction started",
             last.line, *last.issuer);
  }
  for (size_t i = 0; i < copies_.size();)  // a store whose source was read may outlive the CTA
    if (copies_[i].issuer->cta->cluster == &cluster)
      finish(i);
    else
      ++i;
}

// How many clusters run at once: any number from one to as many as the multiprocessors have room for. How many registers a
// thread takes is known where .maxnreg says so; otherwise they do not count.
size_t Machine::most_resident() {
  if (settings_.resident) return settings_.resident;
  u32 threads = (program_.threads() + LANES - 1) / LANES * LANES;
  u32 each = std::min({CTAS, THREADS / threads, SHARED_BYTES / (program_.shared_bytes + SHARED_RESERVED)});
  if (program_.registers_given) each = std::min(each, REGISTERS / (program_.registers * threads));
  size_t room = static_cast<size_t>(each) * settings_.multiprocessors / program_.cluster;
  return 1 + random_() % std::max<size_t>(1, std::min(room, order_.size()));
}

// Clusters start, and those that are done go. Whether there was one.
bool Machine::renew(size_t limit) {
  size_t before = started_;
  while (started_ < order_.size() && resident_.size() < limit) resident_.push_back(start(order_[started_++]));
  bool changed = started_ != before;
  for (size_t i = 0; i < resident_.size();) {
    if (!finished(*resident_[i])) {
      ++i;
      continue;
    }
    check_exit(*resident_[i]);
    resident_.erase(resident_.begin() + static_cast<std::ptrdiff_t>(i));
    changed = true;
  }
  return changed;
}

void Machine::run() {
  order_.resize(launch_.grid[0] * launch_.grid[1] * launch_.grid[2] / program_.cluster);
  std::iota(order_.begin(), order_.end(), 0u);
  bool shuffles = settings_.policy == Policy::random;
  if (settings_.policy == Policy::reverse) std::reverse(order_.begin(), order_.end());
  if (shuffles) std::shuffle(order_.begin(), order_.end(), random_);
  const u32 quanta[] = {1, 8, 64, 4096};
  u32 quantum = shuffles ? quanta[random_() % 4] : settings_.policy == Policy::eager ? 64 : 1u << 30;
  size_t limit = most_resident();
  std::vector<Warp*> warps;
  while (started_ < order_.size() || !resident_.empty()) {
    if (renew(limit)) {
      warps.clear();
      for (auto& cluster : resident_)
        for (Cta& cta : cluster->ctas)
          for (Warp& warp : cta.warps) warps.push_back(&warp);
      if (settings_.policy == Policy::reverse) std::reverse(warps.begin(), warps.end());
      if (warps.empty()) continue;
    }
    if (shuffles) std::shuffle(warps.begin(), warps.end(), random_);
    bool progress = false;
    for (Warp* warp : warps) {
      if (warp->alive == 0) continue;
      turn_ = {warp, executed};
      progress |= turn(*warp, quantum);
      if (settings_.trace) trace_turn();
      if (shuffles) {
        progress |= advance_copies(false);
        if (!warp->queue.empty() && random_() % 4 == 0) carry_out_wgmma(*warp);
      }
    }
    bool done = std::all_of(resident_.begin(), resident_.end(), [&](const auto& c) { return finished(*c); });
    if (!progress && !done && !advance_copies(true)) deadlock();
  }
}

}  // namespace sim
