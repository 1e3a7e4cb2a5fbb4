// What each warp, copy and group of wgmmas did and when, gathered where a launch is traced. Time is the number of warp
// instructions that the machine has executed: an order of events, no measure of a GPU's time.
#include "machine.h"

namespace sim {

void Machine::record(Event::Kind kind, const Warp& warp, u64 begin, int line, s64 what, u64 address, u64 number) {
  const Cta& cta = *warp.cta;
  u64 place = cta.id[0] + static_cast<u64>(launch_.grid[0]) * (cta.id[1] + static_cast<u64>(launch_.grid[1]) * cta.id[2]);
  events.push_back({static_cast<s64>(kind), static_cast<s64>(place), warp.index, static_cast<s64>(begin),
                    static_cast<s64>(executed), line, what, static_cast<s64>(address), static_cast<s64>(number)});
}

// `ready`, with a note of when the group began to wait and of what it had waited for.
bool Machine::traced_ready(Warp& warp, Group& group) {
  const Group before = group;
  bool over = ready(warp, group);
  if (before.wait == Wait::none) return over;
  if (over)
    trace_wait(warp, before);
  else if (!before.since)
    group.since = executed;
  if (over) group.since = 0;
  return over;
}

void Machine::trace_wait(const Warp& warp, const Group& group) {
  if (!group.since) return;
  u64 address = group.wait == Wait::mbarrier ? group.address - SHARED_BASE : group.address;
  record(Event::wait, warp, group.since, program_.code[static_cast<size_t>(group.pc)].line,
         static_cast<s64>(group.wait), address, group.parity);
}

void Machine::trace_turn() {
  if (turn_.first && executed > turn_.second) record(Event::run, *turn_.first, turn_.second, 0, 0, 0, 0);
  turn_.first = nullptr;
}

void Machine::trace_copy(const Copy& copy) {
  record(copy.writes_shared() ? Event::load : Event::store, *copy.issuer, copy.since, copy.ins->line, copy.kind,
         copy.shared - SHARED_BASE, copy.bytes);
}

void Machine::trace_wgmmas(const Warp& warp, const WgmmaGroup& group) {
  if (group.last) record(Event::wgmma, warp, group.since, group.line, 0, 0, group.last);
}

// What had not ended when the launch did: after a report, the warp that ran and the waits that it tells of.
void Machine::trace_open() {
  trace_turn();
  for (auto& cluster : resident_)
    for (Cta& cta : cluster->ctas)
      for (Warp& warp : cta.warps)
        for (Group& group : warp.groups)
          if (group.wait != Wait::none) trace_wait(warp, group);
  for (const Copy& copy : copies_) trace_copy(copy);
}

}  // namespace sim
