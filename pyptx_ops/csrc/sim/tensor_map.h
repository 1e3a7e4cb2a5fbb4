// Tensor maps: what a tile is of a tensor, the rules that a map keeps, and its 128 bytes.
#pragma once

#include "program.h"

namespace sim {

constexpr u32 MAP_BYTES = 128;

struct TensorMap {
  u64 address = 0;
  int rank = 0, swizzle = 0, interleave = 0;
  Type type{};
  int element = 2;  // bytes
  bool nan = false;
  u64 dims[5] = {}, strides[5] = {};  // strides[d] is that of dimension d + 1, in bytes
  u32 box[5] = {}, steps[5] = {1, 1, 1, 1, 1};
  u32 extent(int d) const { return d ? (box[d] + steps[d] - 1) / steps[d] : box[0]; }  // of the tile in shared memory
  u64 bytes() const {
    u64 total = static_cast<u64>(element);
    for (int d = 0; d < rank; ++d) total *= extent(d);
    return total;
  }
  void set_type(int code);
  void check() const;
};

// As tensormap.replace finds it: address, then words of flags, strides, sizes, steps and boxes.
void encode(const TensorMap& map, int code, u8* bytes);
TensorMap decode_map(const u8* bytes);

// Changes a field; `ordinal` is a dimension's.
void replace_field(u8* bytes, Word field, u32 ordinal, u64 value);

// Moves 16-byte units by bits of the absolute shared address.
inline u32 swizzled(u32 address, int span) {
  u32 rows = span == 128 ? 7 : span == 64 ? 3 : span == 32 ? 1 : 0;
  return address ^ ((address >> 7 & rows) << 4);
}

}  // namespace sim
