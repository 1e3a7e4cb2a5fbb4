// Who may touch memory when: vector clocks of warps and of what they started.
//
// Actors of a cluster: its warps, each warp's wgmmas, each mbarrier, whose clock is its phase and stands for the copies
// that report to it, and the bulk stores of a lane, once as readers and once as writers. A warp's clock counts its
// instructions. A warp knows up to which clock of every actor it may rely on (`seen`), and for which of those writes a
// proxy fence has been passed (`proxied`), so that the asynchronous proxy sees them too. Knowledge travels through
// barriers, and through acquire and release at an address. Lanes of a warp are in order up to its last bar.warp.sync
// (`aligned`), and what some of its lanes release does not hold for the others (`Part`).
//
// A word remembers its last write and its reads since that nothing orders among each other. Since a later access in
// order after these is in order after all before, that is enough.
#include <algorithm>

#include "machine.h"

namespace sim {
namespace {

constexpr u32 LOCAL = 0xFFFF;  // of an actor's number: within its cluster

bool atomic_to(const Epoch& a, const Epoch& b) {
  if (!a.strong || !b.strong) return false;
  return a.actor >> 16 == b.actor >> 16 || (a.strong == 3 && b.strong == 3);
}

}  // namespace

u32 Machine::new_actor(Cluster& cluster, u32 count) {
  u32 first = cluster.actors;
  cluster.actors += count;
  if (cluster.actors > LOCAL) throw Problem("unsupported", "more barriers and copies than the machine can tell apart");
  return first;
}

std::string Machine::name_of(u32 actor, const Cta* cta) const {
  u32 each = (program_.threads() + LANES - 1) / LANES, warps = each * program_.cluster, local = actor & LOCAL;
  if (local >= 2 * warps) return "a copy";
  std::string text = local >= warps ? "a wgmma of warp " : "warp ";
  local %= warps;
  text += std::to_string(local % each);
  if (cta && cta->rank == local / each && cta->cluster->number == actor >> 16) return text;
  u32 id[3];
  place_cta(actor >> 16, local / each, id);
  return text + " of CTA (" + std::to_string(id[0]) + ", " + std::to_string(id[1]) + ", " + std::to_string(id[2]) + ")";
}

std::shared_ptr<const Clock> Machine::snapshot(Warp& warp) {
  if (!warp.shot) warp.shot = std::make_shared<const Clock>(warp.now);
  return warp.shot;
}

// What these lanes have done, and what they know, is known to whoever waits for this.
void Machine::release(Warp& warp, u32 lanes, Clock& into) {
  into.learn(warp.now);
  bool all = (lanes & warp.alive) == warp.alive;
  into.see(warp.actor, all ? warp.clock : warp.aligned);
  if (!all) into.reach_part({warp.actor, lanes, warp.clock, 0});
}

void Machine::acquire(Warp& warp, u32 lanes, const Clock& from) {
  warp.now.learn(from);
  warp.shot.reset();
  order_lanes(warp, ALL, lanes, from.seen_of(warp.actor));
  for (const Part& part : from.parts)
    if (part.actor == warp.actor) order_lanes(warp, part.lanes, lanes, part.seen);
}

// What `before` did up to a clock comes before what `after` does from now on.
void Machine::order_lanes(Warp& warp, u32 before, u32 after, u32 clock) {
  if (clock <= warp.aligned) return;
  if ((before & after & warp.alive) == warp.alive) {
    warp.aligned = clock;
    return;
  }
  if (!warp.lanes) warp.lanes = std::make_unique<LaneOrder>();
  for (int b = 0; b < LANES; ++b)
    for (int a = 0; a < LANES && (after >> b & 1); ++a)
      if (before >> a & 1) (*warp.lanes)[b][a] = std::max((*warp.lanes)[b][a], clock);
}

// bar.warp.sync: these lanes know of each other all that any of them knows.
void Machine::meet_lanes(Warp& warp, u32 mask) {
  if (warp.lanes && (mask & warp.alive) != warp.alive) {
    std::array<u32, LANES> known{};
    for (int b = 0; b < LANES; ++b)
      for (int a = 0; a < LANES && (mask >> b & 1); ++a) known[a] = std::max(known[a], (*warp.lanes)[b][a]);
    for (int b = 0; b < LANES; ++b)
      if (mask >> b & 1) (*warp.lanes)[b] = known;
  }
  order_lanes(warp, mask, mask, warp.clock);
}

// Everything that these lanes rely on becomes visible to the asynchronous proxy.
void Machine::fence_proxy(Warp& warp, u32 lanes) {
  warp.now.pass_fence();
  if ((lanes & warp.alive) == warp.alive)
    warp.now.trust(warp.actor, warp.clock);
  else
    warp.now.reach_part({warp.actor, lanes, 0, warp.clock});
  warp.shot.reset();
}

bool Machine::lanes_ordered(const Warp& warp, const Epoch& before, u32 lanes) const {
  if (!lanes || before.clock <= warp.aligned || before.clock == warp.clock) return true;
  bool one = !(lanes & (lanes - 1));
  u32 others = one ? before.lanes & ~lanes : before.lanes;
  if (!others) return true;
  if (!warp.lanes) return false;
  for (int b = 0; b < LANES; ++b)
    for (int a = 0; a < LANES && (lanes >> b & 1); ++a)
      if ((others >> a & 1) && a != b && (*warp.lanes)[b][a] < before.clock) return false;
  return true;
}

bool Machine::ordered(const Epoch& before, const Touch& touch) const {
  if (before.actor == touch.self) return before.clock <= touch.until && lanes_ordered(*touch.warp, before, touch.lanes);
  if (before.actor >> 16 == touch.self >> 16) return touch.known->sees(before.actor & LOCAL, before.clock, before.lanes);
  if (!touch.known->elsewhere) return false;
  auto found = touch.known->elsewhere->find(before.actor >> 16);
  return found != touch.known->elsewhere->end() &&
         found->second.sees(before.actor & LOCAL, before.clock, before.lanes);
}

// Whether an ordinary write has passed a proxy fence.
bool Machine::proxied(const Epoch& before, const Touch& touch) const {
  const Clock* known = touch.known;
  if (before.actor >> 16 != touch.self >> 16) {
    if (!known->elsewhere) return true;  // a race, not a missing fence
    auto found = known->elsewhere->find(before.actor >> 16);
    if (found == known->elsewhere->end()) return true;
    known = &found->second;
  }
  return known->sees_proxied(before.actor & LOCAL, before.clock, before.lanes);
}

std::string Machine::place_name(u64 address, const Cta* cta) const {
  if (cta)
    return "shared memory offset " + std::to_string(address) +
           (program_.cluster > 1 ? " of CTA " + std::to_string(cta->rank) : "");
  for (const Segment& s : launch_.segments)
    if (address >= s.base && address < s.base + s.size)
      return "byte " + std::to_string(address - s.base) + " of a tensor of " + std::to_string(s.size) + " bytes";
  return "global memory";
}

void Machine::race(const Epoch& before, bool wrote, const Touch& touch, u64 address, const Cta* cta) const {
  std::string who = name_of(before.actor, cta), did = wrote ? " wrote it" : " read it";
  std::string what = touch.writes ? (touch.mark.async ? "overwritten" : "written") : "read";
  if (touch.mark.async) what += " by " + name_of(touch.mark.actor, cta);
  if (before.async && !wrote && cta) {
    Problem problem("copy in flight", place_name(address, cta) + " is " + what +
                                          " while a store that was not waited for still reads it");
    problem.others.emplace_back(before.line, "the store");
    throw problem;
  }
  std::string by = before.actor == touch.self && before.lanes ? "another lane of the warp" : who;
  Problem problem("race", place_name(address, cta) + " is " + what + ", and nothing orders that after " + by + did);
  if (before.line) problem.others.emplace_back(static_cast<int>(before.line), by + did);
  throw problem;
}

void Machine::missing_fence(const Epoch& before, const Touch& touch, u64 address, const Cta* cta) const {
  Problem problem("missing proxy fence",
                  place_name(address, cta) + " is " + (touch.writes ? "overwritten" : "read") +
                      " through the asynchronous proxy; it was written through the generic one, and no "
                      "fence.proxy.async lies between");
  problem.others.emplace_back(static_cast<int>(before.line), name_of(before.actor, cta) + " wrote it");
  throw problem;
}

// Checks an access against what is remembered of its place, and remembers it. cta: null for global memory.
void Machine::touch(Shadow& shadow, u64 start, u64 bytes, const Touch& touch, const Cta* cta) {
  Epoch write, read;  // that have been found in order; neighbours are mostly alike
  shadow.each(start, bytes, [&](Page& page, u32 first, u32 last, u64 address) {
    for (u32 i = first; i < last && !page.writes.empty(); ++i) {
      const Epoch& before = page.writes[i];
      if (before.clock && !before.alike(write)) {
        u64 at = address + (i - first) * page.unit;
        if (!atomic_to(before, touch.mark) && !ordered(before, touch)) race(before, true, touch, at, cta);
        if (touch.mark.async && !before.async && !proxied(before, touch)) missing_fence(before, touch, at, cta);
        write = before;
      }
    }
    if (touch.writes) {
      for (u32 i = first; i < last && !page.reads.empty(); ++i)
        if (page.reads[i].clock) after_reads(page, i, touch, address + (i - first) * page.unit, read, cta);
      page.calm = false;
      if (page.writes.empty()) page.writes.resize(page.units());
      std::fill(page.writes.begin() + first, page.writes.begin() + last, touch.mark);
      return;
    }
    if (page.reads.empty()) page.reads.resize(page.units());
    for (u32 i = first; i < last; ++i) {
      Epoch& before = page.reads[i];
      if (!before.more && (!before.clock || (read.clock && before.alike(read)))) {
        before = touch.mark;
        continue;
      }
      const Epoch old = before;
      note_read(page, i, touch);
      if (before.alike(touch.mark) && !before.more) read = old;  // others like it are replaced too
    }
  });
}

// Everybody who has read the place is done, which is forgotten then. known: a read that is in order.
void Machine::after_reads(Page& page, u32 index, const Touch& touch, u64 address, Epoch& known, const Cta* cta) {
  auto check = [&](const Epoch& before) {
    if (before.alike(known) || atomic_to(before, touch.mark)) return;
    if (!ordered(before, touch)) race(before, false, touch, address, cta);
    known = before;
  };
  Epoch& read = page.reads[index];
  check(read);
  if (read.more) {
    check(page.seconds[index]);
    auto others = page.others.find(index);
    if (others != page.others.end()) {
      for (const Epoch& other : others->second) check(other);
      page.others.erase(others);
    }
  }
  read = Epoch();
}

// A read takes the place of one that comes before it in order. Of readers in several clusters two are remembered: who
// writes without an order between clusters races with one of them.
void Machine::note_read(Page& page, u32 index, const Touch& touch) {
  const Epoch& mark = touch.mark;
  auto replaces = [&](Epoch& before) {
    bool same = before.actor == mark.actor;
    if (same && !mark.async && (before.clock == mark.clock || !lanes_ordered(*touch.warp, before, touch.lanes))) {
      before.clock = mark.clock;  // by several lanes
      before.lanes |= mark.lanes;
      return true;
    }
    if (before.clock && !(same && mark.async) && !ordered(before, touch)) return false;
    u32 more = before.more;
    before = mark;
    before.more = more;
    return true;
  };
  Epoch& read = page.reads[index];
  if (replaces(read)) return;
  if (page.seconds.empty()) page.seconds.resize(page.reads.size());
  Epoch& second = page.seconds[index];
  if (!read.more) second = Epoch();
  read.more = 1;
  if (replaces(second) || read.actor >> 16 != second.actor >> 16) return;
  if (read.actor >> 16 != mark.actor >> 16) {
    second = mark;
    return;
  }
  std::vector<Epoch>& others = page.others[index];
  for (Epoch& other : others)
    if (replaces(other)) return;
  others.push_back(mark);
}

Touch Machine::touch_of(const Warp& warp, const Ins& ins, bool write) const {
  Touch touch{&warp.now, warp.actor | warp.cta->cluster->number << 16, warp.clock, &warp, 0, write, Epoch()};
  bool together = ins.op == Op::ldmatrix || ins.op == Op::stmatrix || lane_ < 0;
  touch.lanes = together ? ALL : 1u << lane_;
  touch.mark.clock = warp.clock;
  touch.mark.actor = touch.self;
  touch.mark.lanes = touch.lanes;
  touch.mark.line = static_cast<u32>(ins.line);
  touch.mark.strong = ins.order & STRONG ? ins.scope() : 0;
  return touch;
}

// An ordinary or atomic access of shared memory by a lane, or by the whole warp.
void Machine::observe(Warp& warp, Cta& cta, u32 offset, u32 bytes, bool write, const Ins& ins) {
  touch(*cta.shadow, offset - SHARED_BASE, bytes, touch_of(warp, ins, write), &cta);
  if (write) after_fetches(cta, warp.now, offset, bytes, "written");
}

void Machine::observe_global(Warp& warp, u64 address, u64 bytes, bool write, const Ins& ins) {
  touch(shadow_, address, bytes, touch_of(warp, ins, write), nullptr);
}

// What a copy relies on is what its issuer knew. Reductions are atomic.
Touch Machine::touch_of(const Copy& copy, bool write, u32 actor) const {
  const Warp& warp = *copy.issuer;
  u32 number = warp.cta->cluster->number << 16;
  Touch touch{copy.known.get(), warp.actor | number, copy.issued, &warp, 1u << copy.lane, write, Epoch()};
  touch.mark.clock = copy.number;
  touch.mark.actor = actor | number;
  touch.mark.line = static_cast<u32>(copy.ins->line);
  touch.mark.async = !copy.generic();
  if (write && copy.reduction != Word::none) touch.mark.strong = copy.kind == Copy::store ? 3 : 2;
  return touch;
}

// The shared memory that a copy writes, or reads, until it is waited for.
void Machine::observe_copy(const Copy& copy) {
  bool writes = copy.writes_shared();
  LastCopy last{copy.number, copy.ins->line, copy.issuer};
  copy.cta->last_copies[copy.actor] = last;
  if (copy.source_cta) copy.source_cta->last_copies[copy.actor] = last;
  touch(*copy.cta->shadow, copy.shared - SHARED_BASE, copy.bytes, touch_of(copy, writes, copy.actor), copy.cta);
  if (writes) after_fetches(*copy.cta, *copy.known, copy.shared, static_cast<u32>(copy.bytes), "overwritten by a copy");
  if (copy.source_cta)
    touch(*copy.source_cta->shadow, copy.source - SHARED_BASE, copy.bytes, touch_of(copy, false, copy.actor), copy.source_cta);
}

// Global memory that a copy reads or writes.
u8* Machine::copied(const Copy& copy, u64 address, u64 bytes, const char* what) {
  u8* place = global(address, bytes, what);
  bool writes = copy.kind == Copy::store;
  touch(shadow_, address, bytes, touch_of(copy, writes, copy.actor + writes), nullptr);
  return place;
}

// The lanes have waited for their bulk stores but the last `pending` groups: for the reads of shared memory, or all.
void Machine::reach_stores(Warp& warp, u32 lanes, u64 pending, bool read_only) {
  for (int l = 0; l < LANES; ++l) {
    if (!(lanes >> l & 1) || !warp.bulk_actor[l] || warp.bulk_open[l] < pending) continue;
    u32 number = static_cast<u32>(warp.bulk_open[l] - pending);  // groups count from 0, clocks from 1
    warp.now.reach(warp.bulk_actor[l], number);
    if (!read_only) warp.now.reach(warp.bulk_actor[l] + 1, number);
    warp.shot.reset();
  }
}

// Whether these bytes lie in memory that is set, and written by what has been found in order for this wgmma.
bool Machine::calm(Cta& cta, const Wgmma& op, u32 offset) {
  u64 first = (offset - SHARED_BASE) / Page::BYTES * Page::BYTES;
  if (offset < SHARED_BASE || first + Page::BYTES > cta.data.size()) return false;
  Page& page = cta.shadow->page_of(first);
  if (page.writes.empty()) return false;
  const Epoch& write = page.writes[0];
  if (!write.clock || !write.alike(op.in_order)) return false;
  if (page.calm) return true;
  for (u64 i = first; i < first + Page::BYTES; ++i)
    if (cta.state[i] != static_cast<u8>(Byte::set)) return false;
  for (const Epoch& other : page.writes)
    if (!other.alike(write)) return false;
  return page.calm = true;
}

// wgmma reads 16 bytes at a time.
void Machine::observe_fetch(const Warp& warp, Cta& cta, const Wgmma& op, u32 offset, u32 bytes) {
  cta.shadow->each(offset - SHARED_BASE, bytes, [&](Page& page, u32 first, u32 last, u64 address) {
    for (u32 i = first; i < last && !page.writes.empty(); ++i) {
      const Epoch& write = page.writes[i];
      if (!write.clock || write.alike(op.in_order)) continue;
      Touch touch{op.clock.get(), warp.actor | cta.cluster->number << 16, op.issued, &warp, 0, false, Epoch()};
      touch.mark.async = 1;
      touch.mark.actor = touch.self + static_cast<u32>(cta.warps.size()) * program_.cluster;
      u64 at = address + (i - first) * page.unit;
      if (!ordered(write, touch)) race(write, true, touch, at, &cta);
      if (!write.async && !proxied(write, touch)) missing_fence(write, touch, at, &cta);
      op.in_order = write;
    }
  });
}

// Every wgmma that has read these bytes is waited for.
void Machine::after_fetches(Cta& cta, const Clock& known, u32 offset, u32 bytes, const char* what) {
  if (cta.fetches.empty()) return;
  u32 warps = static_cast<u32>(cta.warps.size()), cluster_warps = warps * program_.cluster, start = offset - SHARED_BASE;
  u32 first = cluster_warps + cta.rank * warps;
  for (u32 chunk = start / CHUNK; chunk <= (start + bytes - 1) / CHUNK; ++chunk)
    for (u32 w = 0; w < warps; ++w) {
      u32 number = cta.fetches[static_cast<size_t>(chunk) * warps + w];
      if (number <= known.seen_of(first + w)) continue;
      std::string who = name_of((first + w) | cta.cluster->number << 16, &cta) + " read it";
      Problem problem("race", place_name(chunk * CHUNK, &cta) + " is " + what + ", and nothing orders that after " + who);
      problem.others.emplace_back(static_cast<int>(cta.wgmma_log[w / 4][number - 1][0]), who);
      throw problem;
    }
}

// A barrier may be used by those who know that it was initialised; by copies and other CTAs after its own fence.
void Machine::observe_barrier(Warp& warp, Cta& cta, const MBarrier& barrier, bool from_afar) {
  const Touch touch{&warp.now, warp.actor | cta.cluster->number << 16, warp.clock, &warp, 0, false, Epoch()};
  if (!ordered(barrier.initialised, touch)) {
    Problem problem("race", "an mbarrier is used, and nothing orders that after its initialisation");
    problem.others.emplace_back(barrier.line, name_of(barrier.initialised.actor, &cta) + " initialised it");
    throw problem;
  }
  if (!from_afar || barrier.published) return;
  Problem problem(
      "missing fence.mbarrier_init",
      "an mbarrier is used by a copy or another CTA, and no fence.mbarrier_init follows its initialisation");
  problem.others.emplace_back(barrier.line, name_of(barrier.initialised.actor, &cta) + " initialised it");
  throw problem;
}

}  // namespace sim
