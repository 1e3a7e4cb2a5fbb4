// Bulk and tensor copies, and their reductions: what an instruction asks for, and what the rules say of it.
#include <cstring>

#include "machine.h"
#include "numbers.h"
#include "reductions.h"
#include "registers.h"

namespace sim {
namespace {

// Operands by the loader's order.
enum : int { ARG_SHARED, ARG_GLOBAL, ARG_COORDINATES, ARG_SIZE, ARG_BARRIER, ARG_MASK, ARG_SOURCE, ARG_OFFSETS };

void need(u64 value, u64 multiple, const char* what) {
  if (value % multiple == 0) return;
  throw Problem("misaligned", std::string(what) + " of this copy is " + std::to_string(value % multiple) +
                                  " bytes past a multiple of " + std::to_string(multiple));
}

bool reduces(Word op, Type type) {
  bool integer = type == Type::u32 || type == Type::s32 || type == Type::u64 || type == Type::s64;
  bool half = type == Type::f16 || type == Type::bf16;
  switch (op) {
    case Word::add: return (integer && type != Type::s64) || half || type == Type::f32 || type == Type::f64;
    case Word::min:
    case Word::max: return integer || half;
    case Word::inc:
    case Word::dec: return type == Type::u32;
    default: return integer;
  }
}

}  // namespace

// Reads or writes a tile row by row: f(byte of the tile, address, bytes) for what lies inside the tensor.
template <class F>
void each_row(const Copy& copy, F f) {
  const TensorMap& map = *copy.map;
  u64 element = static_cast<u64>(map.element), pitch = map.box[0] * element, rows = copy.bytes / pitch;
  s64 low = copy.at[0] < 0 ? -static_cast<s64>(copy.at[0]) : 0, high = static_cast<s64>(map.dims[0]) - copy.at[0];
  if (high > static_cast<s64>(map.box[0])) high = map.box[0];
  if (low >= high) return;
  for (u64 row = 0; row < rows; ++row) {
    u64 address = map.address + static_cast<u64>(copy.at[0] + low) * element;
    s64 at[5];
    bool inside = true;
    map.line(copy.at, copy.offsets, row, at);
    for (int d = 1; d < map.rank; ++d) {
      inside &= at[d] >= 0 && static_cast<u64>(at[d]) < map.dims[d];
      address += static_cast<u64>(at[d]) * map.strides[d - 1];
    }
    if (inside) f(row * pitch + static_cast<u64>(low) * element, address, static_cast<u64>(high - low) * element);
  }
}

void Machine::load_tile(Copy& copy) {
  copy.snapshot.assign(copy.bytes, 0);
  u64 element = static_cast<u64>(copy.map->element);
  if (copy.map->nan)
    for (u64 i = 0; i < copy.bytes; ++i) {
      u64 byte = i % element;  // of OUT_OF_BOUNDS_NAN, with ones between where the element is wider
      copy.snapshot[i] = static_cast<u8>(byte == 0             ? OUT_OF_BOUNDS_NAN & 255
                                         : byte == element - 1 ? OUT_OF_BOUNDS_NAN >> 8
                                                               : 255);
    }
  each_row(copy, [&](u64 at, u64 address, u64 bytes) {
    std::memcpy(copy.snapshot.data() + at, copied(copy, address, bytes, "a tensor copy"), bytes);
  });
}

void Machine::store_tile(Copy& copy) {
  u64 element = static_cast<u64>(copy.map->element);
  each_row(copy, [&](u64 at, u64 address, u64 bytes) {
    u8* place = copied(copy, address, bytes, "a tensor copy");
    for (u64 i = 0; i < bytes; i += element) {
      u32 from = swizzled(copy.shared + static_cast<u32>(at + i), copy.map->swizzle) - copy.shared;
      if (copy.reduction == Word::none)
        std::memcpy(place + i, copy.snapshot.data() + from, element);
      else
        reduce(copy, place + i, copy.snapshot.data() + from, element, true);
    }
  });
}

// The tensor map at a generic address: a parameter, or a copy of one in global memory that may have been edited.
const TensorMap& Machine::map_at(const Warp& warp, u64 address) {
  if (space_of(address) == Word::param) {
    auto found = launch_.maps.find(static_cast<u32>(address - PARAM_SPACE));
    if (address - PARAM_SPACE >= launch_.params.size() || found == launch_.maps.end())
      throw Problem("tensor map", "the address of the tensor map is no tensor-map parameter of the kernel");
    return found->second;
  }
  if (space_of(address) != Word::global) throw Problem("tensor map", "a tensor map is a parameter or in global memory");
  need(address, 64, "the address of the tensor map");
  check_edit(warp, address);
  const u8* bytes = global(address, MAP_BYTES, "a tensor map");
  std::string content(reinterpret_cast<const char*>(bytes), MAP_BYTES);
  auto [place, fresh] = edited_maps_.try_emplace(content);
  if (fresh) {
    place->second = decode_map(bytes);
    place->second.check();
  }
  return place->second;
}

// Where a copy in im2col mode starts in the map's window, and the offsets of what it reads from there.
void Machine::find_window(Warp& warp, const Ins& ins, int lane, u32 mask, Copy& copy) {
  const TensorMap& map = *copy.map;
  bool wanted = ins.flags & IM2COL;
  if (map.im2col != wanted)
    throw Problem("tensor map", wanted ? "a copy in im2col mode with a map that was made for tiles"
                                       : "a copy of tiles with a map that was made for im2col");
  if (!wanted) return;
  bool shifted = ins.args() > ARG_OFFSETS;
  for (int d = 1; d + 1 < map.rank; ++d) {
    s64 past = static_cast<s64>(copy.at[d]) - map.lower[d - 1], step = map.steps[d];
    if (past < 0 || past % step || past / step >= map.starts(d))
      throw Problem("tensor map", "coordinate " + std::to_string(copy.at[d]) + " of dimension " + std::to_string(d) +
                                      " is no start in the window of im2col: " + std::to_string(map.starts(d)) +
                                      " from " + std::to_string(map.lower[d - 1]) + ", " + std::to_string(step) + " apart");
    u32 limit = map.rank == 3 ? 1 << 16 : map.rank == 4 ? 1 << 8 : 1 << 5;
    u32 offset = shifted ? read<u32>(warp, ins.arg(ARG_OFFSETS, d - 1), mask)[lane] & 0xFFFF : 0;
    if (offset >= limit)
      throw Problem("tensor map", "an offset of im2col of " + std::to_string(offset) + "; less than " +
                                      std::to_string(limit) + " is taken in " + std::to_string(map.rank) + " dimensions");
    copy.offsets[d - 1] = offset;
  }
}

void Machine::find_tile(Warp& warp, const Ins& ins, u64 address, int lane, u32 mask, Copy& copy) {
  copy.map = &map_at(warp, address);
  copy.bytes = copy.map->bytes();
  copy.type = copy.map->type;
  int rank = copy.map->rank;
  if (ins.size(ARG_COORDINATES) != rank)
    throw Problem("tensor map", std::to_string(ins.size(ARG_COORDINATES)) + " coordinates for a map of " +
                                    std::to_string(rank) + " dimensions");
  for (int d = 0; d < rank; ++d)
    copy.at[d] = static_cast<s32>(read<u32>(warp, ins.arg(ARG_COORDINATES, d), mask)[lane]);
  find_window(warp, ins, lane, mask, copy);
  s64 inner = static_cast<s64>(copy.at[0]) * copy.map->element;
  if (inner % 16)
    throw Problem("misaligned", "the innermost coordinate " + std::to_string(copy.at[0]) + " is " +
                                    std::to_string(inner) + " bytes, and an H200 takes multiples of 16 only");
  if (copy.reduction != Word::none && !reduces(copy.reduction, copy.type))
    throw Problem("tensor map", "this reduction does not take the elements of the map");
}

void Machine::bulk(Warp& warp, const Ins& ins, int lane, u32 mask) {
  auto lane64 = [&](int arg) {
    return read<u64>(warp, ins.arg(arg), mask)[lane] + static_cast<u64>(ins.arg(arg).offset);
  };
  bool loads = ins.op == Op::tma_load || ins.op == Op::bulk_load, exchanges = ins.op == Op::bulk_exchange;
  bool tensor = ins.op == Op::tma_load || ins.op == Op::tma_store;
  Copy copy{};
  copy.kind = loads ? Copy::load : exchanges ? Copy::exchange : Copy::store;
  copy.ins = &ins;
  copy.issuer = &warp;
  copy.lane = lane;
  copy.group = warp.bulk_open[lane];
  copy.reduction = ins.mode;
  copy.type = ins.type;
  bool own = copy.kind == Copy::store || ins.space == Word::shared_cta;
  copy.cta = &cta_of(warp, static_cast<u32>(lane64(ARG_SHARED)), own, &copy.shared);
  if (tensor) {
    find_tile(warp, ins, lane64(ARG_GLOBAL), lane, mask, copy);
  } else {
    copy.bytes = read<u32>(warp, ins.arg(ARG_SIZE), mask)[lane];
    if (copy.bytes % 16 || !copy.bytes)
      throw Problem("misaligned", "a bulk copy of " + std::to_string(copy.bytes) + " bytes, which is no multiple of 16");
    if (exchanges)
      copy.source_cta = &cta_of(warp, static_cast<u32>(lane64(ARG_SOURCE)), true, &copy.source);
    else
      copy.global = lane64(ARG_GLOBAL);
  }
  need(copy.shared, tensor ? 128 : 16, "the shared address");
  need(copy.source, 16, "the source");
  need(copy.global, 16, "the global address");
  if (copy.kind == Copy::store) return issue(std::move(copy));
  copy.barrier_cta = &cta_of(warp, static_cast<u32>(lane64(ARG_BARRIER)), false, &copy.barrier);
  if (!(ins.flags & MULTICAST)) {
    if (copy.barrier_cta != copy.cta)
      throw Problem("barrier misuse", "a copy to CTA " + std::to_string(copy.cta->rank) +
                                          " of the cluster reports to an mbarrier of CTA " +
                                          std::to_string(copy.barrier_cta->rank));
    return issue(std::move(copy));
  }
  u32 ctas = static_cast<u32>(lane64(ARG_MASK)) & 0xFFFF;
  for (u32 rank = 0; rank < 16; ++rank) {
    if (!(ctas >> rank & 1)) continue;
    if (rank >= warp.cta->cluster->ctas.size()) throw Problem("out of bounds", "multicast to CTA " + std::to_string(rank));
    Copy one = copy;
    one.cta = one.barrier_cta = &warp.cta->cluster->ctas[rank];
    check_runs(warp, *one.cta);
    issue(std::move(one));
  }
}

bool Machine::asynchronous(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  switch (ins.op) {
    case Op::tma_prefetch: {
      Copy copy{};
      const u64* address = read<u64>(warp, ins.arg(ARG_GLOBAL), mask);
      for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) find_tile(warp, ins, address[l], l, mask, copy);
      break;
    }
    case Op::bulk_commit:
      for (int l = 0; l < LANES; ++l) warp.bulk_open[l] += mask >> l & 1;
      break;
    case Op::bulk_wait:
      group.wanted = static_cast<u32>(ins.arg(0).value);
      group.parity = (ins.flags & READ) != 0;
      if (!copies_done(warp, group, Copy::store)) {
        group.wait = Wait::bulk;
        return true;
      }
      reach_stores(warp, mask, group.wanted, group.parity != 0);
      break;
    case Op::tma_load:
    case Op::tma_store:
    case Op::bulk_load:
    case Op::bulk_store:
    case Op::bulk_exchange:
      for (lane_ = 0; lane_ < LANES; ++lane_)
        if (mask >> lane_ & 1) bulk(warp, ins, lane_, mask);
      lane_ = -1;
      break;
    default: return elements(warp, group, ins, mask) || edit_map(warp, group, ins, mask);
  }
  ++group.pc;
  return true;
}

}  // namespace sim
