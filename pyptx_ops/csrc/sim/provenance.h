// Where 16-byte units of shared memory came from, and whether an operand of wgmma is one consistent tile of it.
#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace sim {

struct TensorMap;

// A tensor copy that was carried out: which part of which tensor its tile is.
struct LoadedTile {
  const TensorMap* map;
  s32 at[5];
  u32 offsets[3];
  int line;
};

// Which tile wrote 16 bytes of shared memory, and which of its units they are, counted as the tile lies without swizzle.
struct Origin {
  u32 tile = 0;  // number in the machine's list, from 1; 0 where ordinary stores wrote, or nothing did
  u32 unit = 0;
};

// Of a fetched operand: the tile that its first unit came from, and the coordinate along K there.
struct Fetched {
  u32 tile = 0;
  bool known = false;  // whether the operand's own steps show which dimension is K
  s64 k = 0;
};

// Checks the units of one operand as they are fetched. Within a tile, the position must advance by one constant from
// row to row and by another along K; tiles of one tensor must agree in the coordinate along K.
class TileCheck {
 public:
  // rows: of the operand in a unit.  elements: along K in a unit.
  TileCheck(const std::vector<LoadedTile>& tiles, const char* operand, u32 rows, u32 elements)
      : tiles_(tiles), operand_(operand), rows_(rows), elements_(elements) {}
  void visit(u32 row, u32 k, Origin origin);
  Fetched finish();

 private:
  struct Part {
    u32 tile, row, k;  // of its first unit
    s64 unit;
    s64 by_row = 0, by_k = 0;  // units of the tile; 0 as long as they are not known
  };
  const std::vector<LoadedTile>& tiles_;
  const char* operand_;
  u32 rows_, elements_;
  std::vector<Part> parts_;

  [[noreturn]] void refuse(const Part& part, u32 row, u32 k, s64 got) const;
  bool leaves_line(const Part& part, s64 count, s64 step) const;
  std::string place(const Part& part, s64 unit) const;
  bool along_k(const Part& part, int* dimension, s64* coordinate) const;
};

// Where a matrix descriptor finds the units of an operand.
struct MatrixLayout {
  u32 start, lbo, sbo, span;
  bool mn_major;
  MatrixLayout(u64 descriptor, bool mn_major);
  u32 address(u32 row, u32 k) const;
};

}  // namespace sim
