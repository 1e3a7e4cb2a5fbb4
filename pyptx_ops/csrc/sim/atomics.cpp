// Atomics and reductions by ordinary lanes: scalars, vectors, compare and swap.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "machine.h"
#include "reductions.h"
#include "registers.h"

namespace sim {
namespace {

constexpr int MAX_ELEMENTS = 8;

}  // namespace

// atom has its result in front; compare and swap has two values. A vector's elements are atomic one by one. Lanes take
// their turns in any order, where lanes interleave.
void Machine::atomic(Warp& warp, const Ins& ins, u32 mask) {
  bool returns = ins.op == Op::atom, swaps = ins.mode == Word::cas;
  const Operand& place = ins.arg(returns);
  int value = returns + (swaps ? 2 : 1), count = ins.size(value);
  u32 size = static_cast<u32>(bytes_of(ins.type));
  u64 address[LANES], old[MAX_ELEMENTS][LANES];
  const u64* base = read<u64>(warp, place, mask);
  for (int l = 0; l < LANES; ++l) {
    address[l] = base[l] + static_cast<u64>(place.offset);
    if (is_shared(ins.space)) address[l] = static_cast<u32>(address[l]);
  }
  u64 values[MAX_ELEMENTS][LANES], wanted[MAX_ELEMENTS][LANES];
  for (int e = 0; e < count; ++e) {
    std::memcpy(values[e], read<u64>(warp, ins.arg(value, e), mask), sizeof values[e]);
    if (swaps) std::memcpy(wanted[e], read<u64>(warp, ins.arg(value - 1, e), mask), sizeof wanted[e]);
  }
  u64 field = size == 8 ? ~0ull : (1ull << (8 * size)) - 1;
  int turns[LANES];
  std::iota(turns, turns + LANES, 0);
  if (settings_.interleave) std::shuffle(turns, turns + LANES, random_);
  for (int l : turns) {
    if (!(mask >> l & 1)) continue;
    lane_ = l;
    u32 total = size * static_cast<u32>(count);
    u8* bytes = locate_byte(warp, ins, address[l], total, true);
    order_access(warp, ins, 1u << l, bytes);
    bool global = ins.space == Word::global || (ins.space == Word::none && space_of(address[l]) == Word::global);
    bool same = true;
    for (int e = 0; e < count; ++e) {
      old[e][l] = 0;
      std::memcpy(&old[e][l], bytes + static_cast<u32>(e) * size, size);
      same &= swaps && old[e][l] == (wanted[e][l] & field);
    }
    for (int e = 0; e < count; ++e) {
      u64 now = swaps ? (same ? values[e][l] : old[e][l]) : reduced(ins.mode, ins.type, old[e][l], values[e][l], global);
      std::memcpy(bytes + static_cast<u32>(e) * size, &now, size);
    }
  }
  lane_ = -1;
  for (int e = 0; returns && e < count; ++e) write<u64>(warp, ins.arg(0, e), old[e], mask);
}

}  // namespace sim
