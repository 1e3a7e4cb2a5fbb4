// Copies go on by themselves: from their issue, over the reading of their source, to their end, as the policy lets them.
#include <algorithm>
#include <cstring>

#include "machine.h"
#include "reductions.h"

namespace sim {

// The destination of a copy: poisoned until the copy has finished.
void Machine::claim(Cta& cta, u32 offset, u64 bytes) {
  u32 start = offset - SHARED_BASE;
  for (u32 i = start; i < start + bytes; ++i) {
    Byte state = static_cast<Byte>(cta.state[i]);
    if (state == Byte::barrier)
      throw Problem("barrier misuse", "a copy overwrites the mbarrier at shared memory offset " + std::to_string(i));
    if (state == Byte::in_flight)
      throw Problem("copy in flight", "two copies in flight write shared memory offset " + std::to_string(i));
  }
  std::memset(cta.state.data() + start, static_cast<int>(Byte::in_flight), bytes);
  std::memset(cta.data.data() + start, 0xCB, bytes);
  std::fill_n(cta.origin.begin() + start / CHUNK, (bytes + CHUNK - 1) / CHUNK, Origin());
}

void Machine::check_inside(const Cta& cta, u32 offset, u64 bytes) {
  if (offset >= SHARED_BASE && offset - SHARED_BASE + bytes <= cta.data.size()) return;
  throw Problem("out of bounds", "a copy of " + std::to_string(bytes) + " bytes at shared memory offset " +
                                     std::to_string(static_cast<s64>(offset) - SHARED_BASE) + " of " +
                                     std::to_string(cta.data.size()) + " bytes");
}

// Who stands for the copy in the order of accesses: its mbarrier, by the phase that it completes, or its lane, by the
// group that it belongs to.
void Machine::name_actor(Copy& copy) {
  Cluster& cluster = *copy.issuer->cta->cluster;
  if (copy.barrier_cta && copy.kind != Copy::arrival) {
    MBarrier& barrier = barrier_at(*copy.barrier_cta, copy.barrier);
    observe_barrier(*copy.issuer, *copy.barrier_cta, barrier, true);
    if (copy.generic() && !barrier.generic_actor) barrier.generic_actor = new_actor(cluster, 1);
    copy.actor = copy.generic() ? barrier.generic_actor : barrier.actor;
    copy.number = static_cast<u32>(barrier.phase) + 1;
    return;
  }
  bool stores = copy.kind == Copy::store;
  u32& actor = (stores ? copy.issuer->bulk_actor : copy.issuer->element_actor)[copy.lane];
  if (!actor) actor = new_actor(cluster, stores ? 2 : 1);
  copy.actor = actor;
  copy.number = static_cast<u32>(copy.group) + 1;
}

void Machine::issue(Copy copy) {
  if (copy.kind != Copy::arrival) check_inside(*copy.cta, copy.shared, copy.bytes);
  if (copy.source_cta) check_inside(*copy.source_cta, copy.source, copy.bytes);
  name_actor(copy);
  if (copy.writes_shared() && copy.reduction == Word::none) claim(*copy.cta, copy.shared, copy.bytes);
  copy.known = snapshot(*copy.issuer);
  copy.issued = copy.issuer->clock;
  if (copy.kind != Copy::arrival) observe_copy(copy);
  bool early = settings_.policy == Policy::eager || (settings_.policy == Policy::random && random_() % 2);
  if (early) read_source(copy);
  copy.since = executed;
  copies_.push_back(std::move(copy));
  if (settings_.policy == Policy::eager) finish(copies_.size() - 1);
}

// Fills the snapshot: the tile as it will lie in shared memory, or the bytes that are to be written.
void Machine::read_source(Copy& copy) {
  if (copy.read) return;
  copy.read = true;
  const u8* source = nullptr;
  switch (copy.kind) {
    case Copy::load:
      if (copy.map) return load_tile(copy);
      source = copied(copy, copy.global, copy.bytes, "a bulk copy");
      break;
    case Copy::store: source = shared(*copy.cta, copy.shared, static_cast<u32>(copy.bytes), false); break;
    case Copy::exchange: source = shared(*copy.source_cta, copy.source, static_cast<u32>(copy.bytes), false); break;
    case Copy::element:
      copy.snapshot.assign(copy.bytes, 0);
      if (copy.valid) std::memcpy(copy.snapshot.data(), copied(copy, copy.global, copy.valid, "cp.async"), copy.valid);
      return;
    case Copy::deposit:
    case Copy::arrival: return;
  }
  copy.snapshot.assign(source, source + copy.bytes);
}

// Elements of `to` become what the reduction makes of them and of those of `from`.
void Machine::reduce(const Copy& copy, u8* to, const u8* from, u64 bytes, bool global) {
  u64 size = static_cast<u64>(bytes_of(copy.type));
  for (u64 i = 0; i < bytes; i += size) {
    u64 was = 0, x = 0;
    std::memcpy(&was, to + i, size);
    std::memcpy(&x, from + i, size);
    u64 now = reduced(copy.reduction, copy.type, was, x, global);
    std::memcpy(to + i, &now, size);
  }
}

void Machine::write_shared(Copy& copy) {
  Cta& cta = *copy.cta;
  u32 start = copy.shared - SHARED_BASE;
  if (copy.reduction != Word::none) {
    u8* place = shared(cta, copy.shared, static_cast<u32>(copy.bytes), false);
    reduce(copy, place, copy.snapshot.data(), copy.bytes, false);
    std::fill_n(cta.origin.begin() + start / CHUNK, (copy.bytes + CHUNK - 1) / CHUNK, Origin());
    return;
  }
  std::memset(cta.state.data() + start, static_cast<int>(Byte::set), copy.bytes);
  if (!copy.map) {
    std::memcpy(cta.data.data() + start, copy.snapshot.data(), copy.bytes);
    return;
  }
  tiles_.push_back({copy.map, {}, {}, copy.ins->line});
  std::copy_n(copy.at, 5, tiles_.back().at);
  std::copy_n(copy.offsets, 3, tiles_.back().offsets);
  for (u64 i = 0; i < copy.bytes; i += CHUNK) {
    u32 to = swizzled(copy.shared + static_cast<u32>(i), copy.map->swizzle) - SHARED_BASE;
    std::memcpy(cta.data.data() + to, copy.snapshot.data() + i, CHUNK);
    cta.origin[to / CHUNK] = {static_cast<u32>(tiles_.size()), static_cast<u32>(i / CHUNK)};
  }
}

void Machine::carry_out(Copy& copy) {
  read_source(copy);
  if (copy.kind == Copy::store) {
    if (copy.map) return store_tile(copy);
    u8* place = copied(copy, copy.global, copy.bytes, "a bulk store");
    if (copy.reduction == Word::none)
      std::memcpy(place, copy.snapshot.data(), copy.bytes);
    else
      reduce(copy, place, copy.snapshot.data(), copy.bytes, true);
    return;
  }
  if (copy.writes_shared()) write_shared(copy);
  if (!copy.barrier_cta) return;
  MBarrier& barrier = barrier_at(*copy.barrier_cta, copy.barrier);
  barrier.arrival = copy.ins->line;
  if (copy.kind == Copy::arrival) {
    barrier.gathering.see(copy.actor, copy.number);
    arrive(barrier, 1);
    return;
  }
  barrier.tx -= static_cast<s64>(copy.bytes);
  complete(barrier);
}

void Machine::finish(size_t index) {
  if (copies_[index].kind == Copy::arrival) {  // after all elements that its thread copies
    const Warp* issuer = copies_[index].issuer;
    int lane = copies_[index].lane;
    for (size_t i = 0; i < index;) {
      if (copies_[i].kind != Copy::element || copies_[i].issuer != issuer || copies_[i].lane != lane) {
        ++i;
        continue;
      }
      finish(i);
      --index;
    }
  }
  Copy copy = std::move(copies_[index]);
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(index));
  try {
    carry_out(copy);
    if (settings_.trace) trace_copy(copy);
  } catch (Problem& problem) {
    if (copy.issuer && problem.line == 0) locate(std::move(problem), *copy.issuer, *copy.ins);
    throw;
  }
}

// Lets copies finish. `stuck`: no warp can go on, so one has to.
bool Machine::advance_copies(bool stuck) {
  if (copies_.empty()) return false;
  if (!stuck && (settings_.policy != Policy::random || random_() % 4)) return false;
  size_t index = settings_.policy == Policy::lazy      ? 0
                 : settings_.policy == Policy::reverse ? copies_.size() - 1
                                                       : random_() % copies_.size();
  finish(index);
  return true;
}

// Whether all but the last `group.wanted` groups of the lanes' copies of a kind are done, or have been read.
bool Machine::copies_done(const Warp& warp, const Group& group, Copy::Kind kind) const {
  const u64* open = kind == Copy::store ? warp.bulk_open : warp.element_open;
  for (const Copy& copy : copies_) {
    if (copy.kind != kind || copy.issuer != &warp || !(group.mask >> copy.lane & 1)) continue;
    if (copy.group + group.wanted < open[copy.lane] && !(group.parity && copy.read)) return false;
  }
  return true;
}

}  // namespace sim
