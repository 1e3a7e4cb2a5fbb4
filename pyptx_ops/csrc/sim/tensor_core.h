// The arithmetic of tensor cores on one warp's tile, whichever instruction it comes from.
#pragma once

#include <type_traits>

#include "program.h"

namespace sim {

constexpr int TILE_ROWS = 16, TILE_BYTES = 32, TILE_COLUMNS = 256;  // at most

// D = A · B + C of a tile: `rows` rows of A and `columns` columns of B, `depth` elements each.
struct Tile {
  Type a, b, d;
  int rows, columns, depth;
  bool negate_a = false, negate_b = false;
  bool saturate = false;   // integers: to s32, instead of wrapping
  bool exclusive = false;  // bits: counted where they differ, instead of where both are set
};

// C or D in the registers of a warp: of eight columns, lane l has 2(l%4) and the next in row l/4, and the same in the row
// eight below; f32 and s32 in a register each, two f16 in one.
struct Fragment {
  u32* const* registers;
  bool halves = false;
  u32* place(u32 row, u32 column) const {
    u32 index = halves ? 2 * (column / 8) + row / 8 : 4 * (column / 8) + 2 * (row / 8) + column % 2;
    return registers[index] + 4 * (row % 8) + column % 8 / 2;
  }
  u32 get(u32 row, u32 column) const {
    u32 word = *place(row, column);
    return halves ? word >> (16 * (column & 1)) & 0xFFFF : word;
  }
  void set(u32 row, u32 column, u32 value) const {
    u32 &word = *place(row, column), shift = 16 * (column & 1);
    word = halves ? (word & ~(0xFFFFu << shift)) | value << shift : value;
  }
};

// a, b: rows of A and columns of B, TILE_BYTES apart.  c: C on the way in and D on the way out.
void multiply(const Tile& tile, const u8* a, const u8* b, Fragment c);

// -- floats -------------------------------------------------------------------------------------------------------------

constexpr s32 NO_EXPONENT = -10000;  // of zero

struct ElementFormat {
  int exponent_bits, mantissa_bits, bias, bytes, unused_bits;
  bool infinities;
};

constexpr ElementFormat element_format(Type type) {
  switch (type) {
    case Type::bf16: return {8, 7, 127, 2, 0, true};
    case Type::f16: return {5, 10, 15, 2, 0, true};
    case Type::tf32: return {8, 10, 127, 4, 13, true};
    case Type::e4m3: return {4, 3, 7, 1, 0, false};
    case Type::e5m2: return {5, 2, 15, 1, 0, true};
    default: return {8, 23, 127, 4, 0, true};
  }
}

// Calls f with the type as a constant.
template <class F>
void with_type(Type type, F f) {
  switch (type) {
    case Type::bf16: return f(std::integral_constant<Type, Type::bf16>());
    case Type::f16: return f(std::integral_constant<Type, Type::f16>());
    case Type::tf32: return f(std::integral_constant<Type, Type::tf32>());
    case Type::e4m3: return f(std::integral_constant<Type, Type::e4m3>());
    case Type::e5m2: return f(std::integral_constant<Type, Type::e5m2>());
    default: throw Problem("unsupported", "tensor cores do not have this type");
  }
}

constexpr int BLOCK = 16, BLOCK_DEPTH = 32;

// Rows of A or columns of B as vectors take them: [place along K][row or column]. Of eight, those with even numbers come
// first: as the registers of a fragment hold columns.
struct Block {
  alignas(32) float value[BLOCK_DEPTH][BLOCK];
  alignas(32) s16 exponent[BLOCK_DEPTH][BLOCK];
  s32 least, most;  // exponents of what is not zero
  bool odd;         // with an infinity or NaN
};

constexpr int lane_of_line(int line) { return (line & 8) | (line & 1) << 2 | (line & 6) >> 1; }

// Bits that are kept: of a sum, below its largest exponent; of the result, as a mask.
struct Precision {
  int fraction;
  s32 keep;
};

// Sums with an exponent below have results that are subnormal, or too small to be scaled.
constexpr s32 LEAST_EXPONENT = -101;

// Whether products of these are exact in f32, and aligned by one multiplication.
inline bool in_range(const Block& a, const Block& b) {
  return !a.odd && !b.odd && a.most + b.most <= 126 && a.least + b.least >= LEAST_EXPONENT;
}

// multiply_block: the rows that were left alone, since a number of theirs is out of range.
#define SIM_BLOCKS                                                                                                 \
  void decode_block(Type type, const u8* rows, int count, int depth, u32 sign, Block& block);                      \
  u32 multiply_block(const Block& a, int rows, const Block& b, int columns, int depth, const Precision& precision, \
                     Fragment c);
namespace portable {
SIM_BLOCKS
}
namespace avx2 {
SIM_BLOCKS
}
#undef SIM_BLOCKS

}  // namespace sim
