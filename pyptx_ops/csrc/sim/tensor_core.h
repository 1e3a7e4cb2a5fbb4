// The arithmetic of tensor cores on one warp's tile, whichever instruction it comes from.
#pragma once

#include "program.h"

namespace sim {

constexpr int TILE_ROWS = 16, TILE_BYTES = 32, TILE_COLUMNS = 256;

// D = A · B + C of a tile: `rows` rows of A and `columns` columns of B, `depth` elements each.
struct Tile {
  Type a, b, d;
  int rows, columns, depth;
  bool negate_a = false, negate_b = false;
  bool saturate = false;   // integers: to s32, instead of wrapping
  bool exclusive = false;  // bits: counted where they differ, instead of where both are set
};

// a, b: rows of A and columns of B, TILE_BYTES apart.  c: TILE_COLUMNS words a row, C on the way in and D on the way out.
void multiply(const Tile& tile, const u8* a, const u8* b, u32* c);

}  // namespace sim
