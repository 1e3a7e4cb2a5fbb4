// The special-function unit as Hopper has it: quadratic interpolation in a table, with a squarer that drops low columns.
#pragma once

#include "numbers.h"
#include "special_tables.h"

namespace sim {

constexpr int SQUARE_BITS = 15, VALUE_BITS = 17;

// The square of a fraction of 17 bits, to 15 bits: partial products below that are not added.
inline u32 truncated_square(u32 u) {
  static const std::vector<u16> table = [] {
    std::vector<u16> squares(1u << 17);
    for (u32 x = 0; x < squares.size(); ++x) {
      u64 sum = 0;
      for (int k = 0; k < 17; ++k) {
        if (!(x >> k & 1)) continue;
        int column = 2 * k - 34 + SQUARE_BITS;
        if (column >= 0) sum += 1ull << column;
        for (int j = 0; j < k; ++j)
          if ((x >> j & 1) && j + k - 33 + SQUARE_BITS >= 0) sum += 1ull << (j + k - 33 + SQUARE_BITS);
      }
      squares[x] = static_cast<u16>(sum);
    }
    return squares;
  }();
  return table[u];
}

// index_bits of a fraction of 23 bits choose the row; c0 counts quarters, c1 and c2 ones of the result.
inline u32 interpolated(const Coefficients* table, int index_bits, int bias, u32 fraction) {
  const Coefficients& c = table[fraction >> (23 - index_bits)];
  u32 u = (fraction << (index_bits - 6)) & 0x1FFFF;  // the bits after the index, as 17
  s64 value = (static_cast<s64>(c[0]) << (VALUE_BITS - 2)) + bias + static_cast<s64>(c[1]) * u +
              (static_cast<s64>(c[2]) * truncated_square(u) << (VALUE_BITS - SQUARE_BITS));
  return static_cast<u32>(value >> VALUE_BITS);
}

// 1 / x for finite x that is not subnormal. Subnormal results become zero.
inline u32 reciprocal(u32 x) {
  u32 sign = x & 0x80000000, exponent = x >> 23 & 255, value = interpolated(RCP_TABLE, 7, RCP_BIAS, x & 0x7FFFFF);
  s32 e = 253 - static_cast<s32>(exponent) + static_cast<s32>(value >> 24);
  return sign | (e <= 0 ? 0 : static_cast<u32>(e) << 23 | (value & 0x7FFFFF));
}

// 2^x of a fixed-point x with 23 bits of fraction. Subnormal results become zero.
inline u32 power_of_two(s64 fixed) {
  s64 e = (fixed >> 23) + 127;
  if (e >= 255) return 0x7F800000;
  if (e <= 0) return 0;
  u32 value = interpolated(EX2_TABLE, 6, EX2_BIAS, static_cast<u32>(fixed & 0x7FFFFF));
  return static_cast<u32>(e) << 23 | (value & 0x7FFFFF);
}

}  // namespace sim
