// Barriers: of a CTA, of a cluster, in shared memory; and the register pool of setmaxnreg.
#include "machine.h"
#include "registers.h"

namespace sim {

std::string Machine::describe(const MBarrier& b) const {
  return "phase " + std::to_string(b.phase) + " is open: " + std::to_string(b.pending) + " of " +
         std::to_string(b.expected) + " arrivals and " + std::to_string(b.tx) + " bytes are missing";
}

MBarrier& Machine::barrier_at(Cta& cta, u32 offset) {
  if (offset % 8)
    throw Problem("misaligned", "an mbarrier at shared memory offset " + std::to_string(offset - SHARED_BASE));
  auto found = cta.barriers.find(offset);
  if (found == cta.barriers.end())
    throw Problem("barrier misuse", "there is no mbarrier at shared memory offset " +
                                        std::to_string(static_cast<s64>(offset) - SHARED_BASE) + " of CTA " +
                                        std::to_string(cta.rank) + ": it was not initialised");
  return found->second;
}

void Machine::complete(MBarrier& barrier) {
  if (barrier.pending == 0 && barrier.tx == 0) {
    ++barrier.phase;
    barrier.pending = barrier.expected;
    barrier.gathering.reach(barrier.actor, static_cast<u32>(barrier.phase));
    if (barrier.generic_actor) barrier.gathering.see(barrier.generic_actor, static_cast<u32>(barrier.phase));
    barrier.done = barrier.gathering;
    barrier.done_far = barrier.gathering_far;
  }
}

void Machine::arrive(MBarrier& barrier, u32 count) {
  if (count > barrier.pending)
    throw Problem("barrier misuse", "more arrivals than the mbarrier expects in a phase: " + describe(barrier));
  barrier.pending -= count;
  complete(barrier);
}

// An arrival at CTA scope orders nothing for other CTAs.
void Machine::arrive_at(Warp& warp, const Cta& cta, MBarrier& barrier, const Ins& ins, u32 lanes) {
  if (ins.flags & RELAXED) return;
  if (&cta == warp.cta)
    release(warp, lanes, barrier.gathering);
  else if (ins.scope() != 1)
    release(warp, lanes, barrier.gathering_far);
}

void Machine::mbarrier(Warp& warp, const Ins& ins, u32 mask) {
  bool arrives = ins.op == Op::mbarrier_arrive || ins.op == Op::mbarrier_arrive_tx;
  int at = arrives ? 1 : 0, value = at + 1;  // an arrival has the state, or the sink, in front
  const Operand& place = ins.arg(at);
  const u32* address = read<u32>(warp, place, mask);
  const u32* number = ins.args() > value ? read<u32>(warp, ins.arg(value), mask) : nullptr;
  u64 state[LANES] = {};
  for (int l = 0; l < LANES; ++l) {
    if (!(mask >> l & 1)) continue;
    lane_ = l;
    u32 offset;
    Cta& cta = cta_of(warp, static_cast<u32>(address[l] + place.offset), ins.space != Word::shared_cluster, &offset);
    if (ins.op == Op::mbarrier_init) {
      if (offset % 8)
        throw Problem("misaligned", "an mbarrier at shared memory offset " + std::to_string(offset - SHARED_BASE));
      if (auto live = cta.barriers.find(offset); live != cta.barriers.end()) {
        Problem problem("barrier misuse", "a live mbarrier is initialised again");
        problem.others.emplace_back(live->second.line, "the first time");
        throw problem;
      }
      shared(cta, offset, 8, true);
      cta.shadow->page_of(offset - SHARED_BASE).calm = false;
      for (u32 i = 0; i < 8; ++i) cta.state[offset - SHARED_BASE + i] = static_cast<u8>(Byte::barrier);
      MBarrier& fresh = cta.barriers[offset];
      fresh.expected = fresh.pending = number[l];
      fresh.line = ins.line;
      fresh.actor = new_actor(*cta.cluster, 1);
      fresh.initialised = touch_of(warp, ins, true).mark;
      continue;
    }
    MBarrier& barrier = barrier_at(cta, offset);
    observe_barrier(warp, cta, barrier, &cta != warp.cta);
    if (ins.op != Op::mbarrier_inval) barrier.arrival = ins.line;
    if (arrives) {
      u32 alike = 0;  // lanes that arrive at this barrier
      for (int other = 0; other < LANES; ++other)
        alike |= (mask >> other & 1 && address[other] == address[l] ? 1u : 0u) << other;
      if (!(alike & ((1u << l) - 1))) arrive_at(warp, cta, barrier, ins, alike);
    }
    state[l] = barrier.phase;
    if (ins.op == Op::mbarrier_inval) {
      for (u32 i = 0; i < 8; ++i) cta.state[offset - SHARED_BASE + i] = static_cast<u8>(Byte::unset);
      cta.barriers.erase(offset);
      continue;
    }
    if (ins.op == Op::mbarrier_arrive_tx || ins.op == Op::mbarrier_expect_tx) barrier.tx += number[l];
    if (ins.op == Op::mbarrier_complete_tx) {
      barrier.tx -= number[l];
      complete(barrier);
    }
    if (barrier.tx >= 1 << 20 || barrier.tx <= -(1 << 20))
      throw Problem("barrier misuse", "the byte count of an mbarrier overflows: " + describe(barrier));
    if (arrives) arrive(barrier, ins.op == Op::mbarrier_arrive && number ? number[l] : 1);
  }
  lane_ = -1;
  if (arrives) write<u64>(warp, ins.arg(0), state, mask);
}

// A thread tells phases apart by their parity alone: the one that it waits for is the first of that parity that it does not
// know to be complete. Had another one completed since, the parity would read as if this one had not.
void Machine::check_lapped(const Warp& warp, const MBarrier& barrier, u32 offset, u32 parity) const {
  u64 known = warp.now.seen_of(barrier.actor), wanted = known + ((known & 1) != parity);
  if (barrier.phase < wanted + 2) return;
  Problem problem("lapped waiter", "phase " + std::to_string(wanted) + " of the mbarrier at shared memory offset " +
                                       std::to_string(offset - SHARED_BASE) + " is waited for by its parity " +
                                       std::to_string(parity) + "; it is complete, and so is phase " +
                                       std::to_string(wanted + 1) + ", which nothing made wait for this thread; " +
                                       describe(barrier));
  problem.others.emplace_back(barrier.arrival, "the last arrival");
  problem.others.emplace_back(barrier.line, "the mbarrier was initialised");
  throw problem;
}

// The lanes wait for a phase; those that wait for another barrier do so apart.
void Machine::suspend(Warp& warp, Group& group, u32 mask, const u32* offset, const u32* parity) {
  int first = __builtin_ctz(mask);
  Group rest = group;
  rest.mask = 0;
  for (int l = first; l < LANES; ++l)
    if ((mask >> l & 1) && (offset[l] != offset[first] || parity[l] != parity[first])) rest.mask |= 1u << l;
  group.mask &= ~rest.mask;
  group.wait = Wait::mbarrier;
  group.address = offset[first];
  group.parity = parity[first];
  group.generation = warp.cta->barriers[offset[first]].phase;
  if (rest.mask) warp.groups.push_back(rest);  // `group` may be gone from here on
}

// try_wait suspends the lanes until a phase of theirs completes, which hardware may do; test_wait answers at once.
bool Machine::wait_parity(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  const Operand& place = ins.arg(1);
  const u32 *address = read<u32>(warp, place, mask), *parity = read<u32>(warp, ins.arg(2), mask);
  u32 done = 0, offset[LANES];
  for (int l = 0; l < LANES; ++l) {
    if (!(mask >> l & 1)) continue;
    lane_ = l;
    Cta& cta = cta_of(warp, static_cast<u32>(address[l] + place.offset), true, &offset[l]);
    const MBarrier& barrier = barrier_at(cta, offset[l]);
    observe_barrier(warp, cta, barrier, false);
    if (!(ins.flags & RELAXED)) check_lapped(warp, barrier, offset[l], parity[l]);
    done |= ((barrier.phase & 1) != parity[l] ? 1u : 0u) << l;
  }
  lane_ = -1;
  if (!done && ins.op == Op::mbarrier_try_wait) {
    suspend(warp, group, mask, offset, parity);
    return false;
  }
  for (u32 left = ins.flags & RELAXED ? 0 : done; left;) {
    u32 at = offset[__builtin_ctz(left)], alike = 0;
    for (int l = 0; l < LANES; ++l) alike |= ((left >> l & 1) && offset[l] == at ? 1u : 0u) << l;
    left &= ~alike;
    const MBarrier& barrier = warp.cta->barriers[at];
    acquire(warp, alike, barrier.done);
    if (ins.scope() != 1) acquire(warp, alike, barrier.done_far);
  }
  write_pred(warp, ins.arg(0), done, mask);
  return true;
}

bool Machine::named_barrier(Warp& warp, Group& group, const Ins& ins) {
  if (group.mask != warp.alive) return together(warp, group, warp.alive, "a CTA barrier");
  u32 id = uniform(warp, ins.arg(0), group.mask);
  u32 wanted =
      ins.args() > 1 ? uniform(warp, ins.arg(1), group.mask) : static_cast<u32>(warp.cta->warps.size()) * LANES;
  if (id > 15) throw Problem("barrier misuse", "CTA barrier " + std::to_string(id) + " of 16");
  NamedBarrier& barrier = warp.cta->named[id];
  if (barrier.arrived && barrier.expected != wanted)
    throw Problem("barrier misuse", "barrier " + std::to_string(id) + " is used with " + std::to_string(wanted) +
                                        " threads, while others wait at it with " + std::to_string(barrier.expected));
  barrier.expected = wanted;
  barrier.arrived += LANES;
  release(warp, warp.alive, barrier.gathering);
  if (barrier.arrived >= barrier.expected) {
    barrier.arrived = 0;
    ++barrier.generation;
    barrier.done = std::move(barrier.gathering);
    barrier.gathering = Clock();
    if (ins.op == Op::bar_sync) acquire(warp, warp.alive, barrier.done);
    return true;
  }
  if (ins.op == Op::bar_arrive) return true;
  group.wait = Wait::named;
  group.address = id;
  group.generation = barrier.generation;
  return false;
}

bool Machine::cluster_barrier(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  Cluster& cluster = *warp.cta->cluster;
  for (int l = 0; l < LANES; ++l) {
    if (!(mask >> l & 1)) continue;
    if (ins.op == Op::cluster_arrive) {
      if (warp.cluster_arrived[l])
        throw Problem("barrier misuse", "a thread arrives twice at the cluster barrier without waiting");
      warp.cluster_arrived[l] = true;
      warp.cluster_phase[l] = cluster.phase;
      ++cluster.arrived;
      cluster.gathering.see(warp.actor, 1);  // also where it orders nothing: that the CTA runs
      if (!(ins.flags & RELAXED) && l == __builtin_ctz(mask)) release(warp, mask, cluster.gathering);
    } else {
      if (!warp.cluster_arrived[l])
        throw Problem("barrier misuse", "a thread waits at the cluster barrier without having arrived");
      if (warp.cluster_phase[l] == cluster.phase) {
        group.wait = Wait::cluster;
        group.generation = cluster.phase;
        return false;
      }
    }
  }
  if (ins.op == Op::cluster_wait) {
    for (int l = 0; l < LANES; ++l)
      if (mask >> l & 1) warp.cluster_arrived[l] = false;
    acquire(warp, mask, cluster.done);
    return true;
  }
  complete_cluster(cluster);
  return true;
}

void Machine::complete_cluster(Cluster& cluster) {
  u32 alive = 0;
  for (const Cta& cta : cluster.ctas) alive += cta.alive();
  if (!alive || cluster.arrived != alive) return;
  cluster.arrived = 0;
  ++cluster.phase;
  cluster.done = std::move(cluster.gathering);
  cluster.gathering = Clock();
}

bool Machine::registers(Warp& warp, Group& group, const Ins& ins) {
  u32 wanted = static_cast<u32>(ins.arg(0).value), &pool = warp.cta->register_pool;
  auto& log = warp.cta->budget_log[warp.index / 4];
  if (warp.budgets < log.size() && log[warp.budgets] != ins.line) {
    Problem problem("warpgroup divergence", "the warps of a warpgroup execute different setmaxnreg");
    problem.others.emplace_back(log[warp.budgets], "another warp of the warpgroup");
    throw problem;
  }
  if (ins.mode == Word::dec) {
    if (wanted > warp.registers)
      throw Problem("register budget", "setmaxnreg.dec to " + std::to_string(wanted) + ", more than the " +
                                           std::to_string(warp.registers) + " registers that the warp has");
    pool += (warp.registers - wanted) * LANES;
  } else {
    if (wanted < warp.registers)
      throw Problem("register budget", "setmaxnreg.inc to " + std::to_string(wanted) + ", fewer than the " +
                                           std::to_string(warp.registers) + " registers that the warp has");
    u32 more = (wanted - warp.registers) * LANES;
    if (more > pool) {
      group.wait = Wait::registers;
      group.wanted = more;
      return false;
    }
    pool -= more;
  }
  if (warp.budgets++ == log.size()) log.push_back(ins.line);
  warp.registers = wanted;
  return true;
}

bool Machine::synchronise(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  switch (ins.op) {
    case Op::bar_sync:
    case Op::bar_arrive:
      if (!named_barrier(warp, group, ins)) return true;
      break;
    case Op::cluster_arrive:
    case Op::cluster_wait:
      if (!cluster_barrier(warp, group, ins, mask)) return true;
      break;
    case Op::setmaxnreg:
      if (!registers(warp, group, ins)) return true;
      break;
    case Op::mbarrier_test_wait:
    case Op::mbarrier_try_wait:
      if (!wait_parity(warp, group, ins, mask)) return true;
      break;
    case Op::mbarrier_init:
    case Op::mbarrier_inval:
    case Op::mbarrier_arrive:
    case Op::mbarrier_arrive_tx:
    case Op::mbarrier_expect_tx:
    case Op::mbarrier_complete_tx: mbarrier(warp, ins, mask); break;
    case Op::fence_mbarrier_init:
      for (auto& [offset, barrier] : warp.cta->barriers)
        barrier.published |= barrier.initialised.actor == (warp.actor | warp.cta->cluster->number << 16);
      break;
    case Op::fence_proxy_async: fence_proxy(warp, mask); break;
    case Op::membar:
    case Op::fence: fence(warp, ins, mask); break;
    default: return false;
  }
  ++group.pc;
  return true;
}

}  // namespace sim
