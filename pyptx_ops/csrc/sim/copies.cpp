// Tensor and bulk copies: they go on by themselves, and finish when the policy lets them.
#include <algorithm>
#include <cstring>

#include "machine.h"

namespace sim {
namespace {

constexpr int SWIZZLE_SHIFT = 7;

// Moves 16-byte chunks by bits of the absolute shared address.
u32 swizzled(u32 address, int span) {
  u32 rows = span == 128 ? 7 : span == 64 ? 3 : span == 32 ? 1 : 0;
  return address ^ ((address >> SWIZZLE_SHIFT & rows) << 4);
}

}  // namespace

// The destination of a copy: poisoned until the copy has finished.
void Machine::claim(Cta& cta, u32 offset, u64 bytes) {
  u32 start = offset - SHARED_BASE;
  if (offset < SHARED_BASE || start + bytes > cta.data.size())
    throw Problem("out of bounds", "a copy of " + std::to_string(bytes) + " bytes to shared memory offset " +
                                       std::to_string(static_cast<s64>(offset) - SHARED_BASE) + " of " +
                                       std::to_string(cta.data.size()) + " bytes");
  for (u32 i = start; i < start + bytes; ++i) {
    Byte state = static_cast<Byte>(cta.state[i]);
    if (state == Byte::barrier)
      throw Problem("barrier misuse", "a copy overwrites the mbarrier at shared memory offset " + std::to_string(i));
    if (state == Byte::in_flight)
      throw Problem("copy in flight", "two copies in flight write shared memory offset " + std::to_string(i));
  }
  std::memset(cta.state.data() + start, static_cast<int>(Byte::in_flight), bytes);
  std::memset(cta.data.data() + start, 0xCB, bytes);
  std::fill_n(cta.origin.begin() + start / CHUNK, bytes / CHUNK, Origin());
}

void Machine::issue(Copy copy) {
  bool load = copy.kind == Copy::tensor_load || copy.kind == Copy::bulk_load;
  u32 alignment = copy.map ? 128 : 16;
  if (copy.shared % alignment || copy.global % 16)
    throw Problem("misaligned", "the shared address of this copy is a multiple of " +
                                    std::to_string(copy.shared % alignment ? copy.shared % 16 ? 1 : 16 : alignment) +
                                    " bytes only, it needs " + std::to_string(alignment) + "; the global one needs 16");
  if (load) {
    MBarrier& barrier = barrier_at(*copy.barrier_cta, copy.barrier);
    observe_barrier(*copy.issuer, *copy.barrier_cta, barrier, true);
    claim(*copy.cta, copy.shared, copy.bytes);
  }
  copy.known = snapshot(*copy.issuer);
  copy.issued = copy.issuer->clock;
  copy.number = static_cast<u32>(copy.group) + 1;
  if (!load && !copy.issuer->bulk_actor[copy.lane])
    copy.issuer->bulk_actor[copy.lane] = new_actor(*copy.issuer->cta->cluster, 2);
  if (copy.shared >= SHARED_BASE && copy.shared - SHARED_BASE + copy.bytes <= copy.cta->data.size()) observe_copy(copy);
  bool early = settings_.policy == Policy::eager || (settings_.policy == Policy::random && random_() % 2);
  if (early) read_source(copy);
  copy.since = executed;
  copies_.push_back(std::move(copy));
  if (settings_.policy == Policy::eager) finish(copies_.size() - 1);
}

// Fills the snapshot: the tile as it will lie in shared memory, or the shared bytes that are to be stored.
void Machine::read_source(Copy& copy) {
  if (copy.kind == Copy::tensor_load) {
    load_tile(copy);
    return;
  }
  const u8* source = copy.kind == Copy::bulk_load ? copied(copy, copy.global, copy.bytes, "a bulk copy")
                                                  : shared(*copy.cta, copy.shared, static_cast<u32>(copy.bytes), false);
  copy.snapshot.assign(source, source + copy.bytes);
}

void Machine::load_tile(Copy& copy) {
  const TensorMap& map = *copy.map;
  u64 element = static_cast<u64>(map.element), pitch = map.box[0] * element, rows = copy.bytes / pitch;
  copy.snapshot.assign(copy.bytes, 0);
  for (u64 row = 0; row < rows; ++row) {
    u64 rest = row, address = map.address;
    bool inside = true;
    for (int d = 1; d < map.rank; ++d) {
      s64 at = copy.at[d] + static_cast<s64>(rest % map.box[d]);
      rest /= map.box[d];
      inside &= at >= 0 && static_cast<u64>(at) < map.dims[d];
      address += static_cast<u64>(at) * map.strides[d - 1];
    }
    s64 low = copy.at[0] < 0 ? -static_cast<s64>(copy.at[0]) : 0;
    s64 high = static_cast<s64>(map.dims[0]) - copy.at[0];
    if (high > static_cast<s64>(map.box[0])) high = map.box[0];
    u8* line = copy.snapshot.data() + row * pitch;
    if (map.nan)  // the pattern that a map fills with
      for (u64 i = 0; i < pitch; ++i) line[i] = i % element == element - 1 ? 0x7F : 0xFF;
    if (!inside || low >= high) continue;
    u64 bytes = static_cast<u64>(high - low) * element;
    address += static_cast<u64>(copy.at[0] + low) * element;
    std::memcpy(line + static_cast<u64>(low) * element, copied(copy, address, bytes, "a tensor copy"), bytes);
  }
}

void Machine::store_tile(Copy& copy) {
  const TensorMap& map = *copy.map;
  u64 element = static_cast<u64>(map.element), pitch = map.box[0] * element;
  for (u64 i = 0; i < copy.bytes; i += element) {
    u64 rest = i / pitch, address = map.address;
    s64 column = copy.at[0] + static_cast<s64>(i % pitch / element);
    bool inside = column >= 0 && static_cast<u64>(column) < map.dims[0];
    address += static_cast<u64>(column) * element;
    for (int d = 1; d < map.rank; ++d) {
      s64 at = copy.at[d] + static_cast<s64>(rest % map.box[d]);
      rest /= map.box[d];
      inside &= at >= 0 && static_cast<u64>(at) < map.dims[d];
      address += static_cast<u64>(at) * map.strides[d - 1];
    }
    u32 from = swizzled(copy.shared + static_cast<u32>(i), map.swizzle) - copy.shared;
    if (inside) std::memcpy(copied(copy, address, element, "a tensor copy"), copy.snapshot.data() + from, element);
  }
}

void Machine::carry_out(Copy& copy) {
  if (copy.snapshot.empty()) read_source(copy);
  if (copy.kind == Copy::bulk_store) {
    std::memcpy(copied(copy, copy.global, copy.bytes, "a bulk store"), copy.snapshot.data(), copy.bytes);
    return;
  }
  if (copy.kind == Copy::tensor_store) {
    store_tile(copy);
    return;
  }
  u32 start = copy.shared - SHARED_BASE;
  u8* base = copy.cta->data.data();
  if (copy.map) tiles_.push_back({copy.map, {}, copy.ins->line});
  if (copy.map) std::copy_n(copy.at, 5, tiles_.back().at);
  for (u64 i = 0; i < copy.bytes; i += 16) {
    u32 to = copy.map ? swizzled(copy.shared + static_cast<u32>(i), copy.map->swizzle) - SHARED_BASE
                      : start + static_cast<u32>(i);
    std::memcpy(base + to, copy.snapshot.data() + i, 16);
    if (copy.map) copy.cta->origin[to / CHUNK] = {static_cast<u32>(tiles_.size()), static_cast<u32>(i / CHUNK)};
  }
  std::memset(copy.cta->state.data() + start, static_cast<int>(Byte::set), copy.bytes);
  MBarrier& barrier = barrier_at(*copy.barrier_cta, copy.barrier);
  barrier.tx -= static_cast<s64>(copy.bytes);
  complete(barrier);
}

void Machine::finish(size_t index) {
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

bool Machine::bulk_done(const Warp& warp, const Group& group) const {
  bool read_only = group.parity;
  for (const Copy& copy : copies_) {
    if (copy.issuer != &warp || !(group.mask >> copy.lane & 1)) continue;
    if (copy.kind != Copy::tensor_store && copy.kind != Copy::bulk_store) continue;
    if (copy.group + group.wanted < warp.bulk_open[copy.lane] && !(read_only && !copy.snapshot.empty())) return false;
  }
  return true;
}

bool Machine::asynchronous(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  bool load = ins.op == Op::tma_load || ins.op == Op::bulk_load;
  bool tensor = ins.op == Op::tma_load || ins.op == Op::tma_store;
  switch (ins.op) {
    case Op::tma_prefetch: break;
    case Op::bulk_commit:
      for (int l = 0; l < LANES; ++l) warp.bulk_open[l] += mask >> l & 1;
      break;
    case Op::bulk_wait:
      group.wanted = static_cast<u32>(ins.arg(0).value);
      group.parity = (ins.flags & READ) != 0;
      if (!bulk_done(warp, group)) {
        group.wait = Wait::bulk;
        return true;
      }
      reach_stores(warp, mask, group.wanted, group.parity != 0);
      break;
    case Op::tma_load:
    case Op::tma_store:
    case Op::bulk_load:
    case Op::bulk_store: {
      // load: [dst] [map, at] [bar]   or [dst] [src] size [bar]; store: [map, at] [src]   or [dst] [src] size
      const Operand& place = ins.arg(load ? 0 : tensor ? 2 : 1);
      const u32* shared_address = read<u32>(warp, place, mask);
      int map_arg = load ? 1 : 0;
      const u64* global_address = read<u64>(warp, ins.arg(map_arg), mask);
      for (int l = 0; l < LANES; ++l) {
        if (!(mask >> l & 1)) continue;
        lane_ = l;
        Copy copy{};
        copy.kind = tensor ? (load ? Copy::tensor_load : Copy::tensor_store)
                    : load ? Copy::bulk_load
                           : Copy::bulk_store;
        copy.ins = &ins;
        copy.issuer = &warp;
        copy.lane = l;
        copy.group = warp.bulk_open[l];
        copy.cta = &cta_of(warp, static_cast<u32>(shared_address[l] + place.offset), false, &copy.shared);
        if (tensor) {
          u64 offset = global_address[l] - PARAM_SPACE;
          auto found = launch_.maps.find(static_cast<u32>(offset));
          if (offset >= launch_.params.size() || found == launch_.maps.end())
            throw Problem("tensor map", "the address of the tensor map is no tensor-map parameter of the kernel");
          copy.map = &found->second;
          copy.bytes = copy.map->bytes();
          if (ins.size(map_arg + 1) != copy.map->rank)
            throw Problem("tensor map", std::to_string(ins.size(map_arg + 1)) + " coordinates for a map of " +
                                            std::to_string(copy.map->rank) + " dimensions");
          for (int d = 0; d < copy.map->rank; ++d)
            copy.at[d] = static_cast<s32>(read<u32>(warp, ins.arg(map_arg + 1, d), mask)[l]);
        } else {
          copy.global = global_address[l] + static_cast<u64>(ins.arg(map_arg).offset);
          copy.bytes = read<u32>(warp, ins.arg(2), mask)[l];
          if (copy.bytes % 16 || !copy.bytes)
            throw Problem("misaligned",
                          "a bulk copy of " + std::to_string(copy.bytes) + " bytes, which is no multiple of 16");
        }
        u32 ctas = 1u << copy.cta->rank;
        if (load) {
          int at = tensor ? 3 : 3;
          const Operand& barrier = ins.arg(at);
          copy.barrier_cta =
              &cta_of(warp, static_cast<u32>(read<u32>(warp, barrier, mask)[l] + barrier.offset), false, &copy.barrier);
          if (ins.flags & MULTICAST) ctas = read<u32>(warp, ins.arg(at + 1), mask)[l] & 0xFFFF;
        }
        for (u32 rank = 0; rank < 16; ++rank) {
          if (!(ctas >> rank & 1)) continue;
          if (rank >= warp.cta->cluster->ctas.size())
            throw Problem("out of bounds", "multicast to CTA " + std::to_string(rank));
          Copy one = copy;
          if (ins.flags & MULTICAST) one.cta = one.barrier_cta = &warp.cta->cluster->ctas[rank];
          issue(std::move(one));
        }
      }
      lane_ = -1;
      break;
    }
    default: return false;
  }
  ++group.pc;
  return true;
}

}  // namespace sim
