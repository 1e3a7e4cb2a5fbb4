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
  // In im2col mode a tile is `pixels` lines of box[0] channels. They start in the window from `lower` to the last index
  // plus `upper` of each of the middle dimensions, which are gone through innermost first and go on in the outermost.
  bool im2col = false;
  u32 pixels = 0;
  s32 lower[3] = {}, upper[3] = {};
  u32 extent(int d) const { return d ? (box[d] + steps[d] - 1) / steps[d] : box[0]; }  // of the tile in shared memory
  u64 bytes() const {
    return static_cast<u64>(element) * box[0] * lines();
  }
  u64 lines() const;  // of a tile, along the innermost dimension
  // Where a line of the tile at these coordinates lies: its coordinates in the outer dimensions. offsets: of im2col.
  void line(const s32* at, const u32* offsets, u64 number, s64* place) const;
  s64 starts(int d) const {  // how many lines of the window of im2col start along a middle dimension
    s64 last = static_cast<s64>(dims[d]) - 1 + upper[d - 1];
    return last < lower[d - 1] ? 0 : (last - lower[d - 1]) / steps[d] + 1;
  }
  void set_type(int code);
  void check() const;

 private:
  void check_window() const;
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
