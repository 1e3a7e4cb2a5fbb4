// The special-function unit: quadratic interpolation in a table, with a squarer that drops low columns. The leading bits
// of an operand choose a row, the next 17 bits u are what is left:
//
//   c0 * 2^a + bias + c1 * u + c2 * square(u) * 2^b
//
// What comes out is truncated. Tables and biases are read off an H200; where the unit negates, it inverts the bits.
#include "special_unit.h"

#include "numbers.h"
#include "special_tables.h"

namespace sim {
namespace {

constexpr int SQUARE_BITS = 15, REST_BITS = 17, MANTISSA = 23;
constexpr u32 SIGN = 0x80000000, INFINITE = 0x7F800000, ONE = 0x3F800000;

struct Table {
  const Coefficients* rows;
  int shift, bias, square_shift;
};

constexpr Table RCP{RCP_ROWS, 15, 8094, 2}, EX2{EX2_ROWS, 15, 24458, 2}, RSQRT{RSQRT_ROWS, 15, -2, 2},
    SQRT{SQRT_ROWS, 15, -1, 1}, LG2{LG2_ROWS, 12, 837, 1}, SIN{SIN_ROWS, 12, 0, 1}, TANH{TANH_ROWS, 15, 0, 1};

// The square of a fraction of 17 bits, to 15 bits: partial products below that are not added.
u32 truncated_square(u32 u) {
  static const std::vector<u16> table = [] {
    std::vector<u16> squares(1u << REST_BITS);
    for (u32 x = 0; x < squares.size(); ++x) {
      u64 sum = 0;
      for (int k = 0; k < REST_BITS; ++k) {
        if (!(x >> k & 1)) continue;
        int column = 2 * (k - REST_BITS) + SQUARE_BITS;
        if (column >= 0) sum += 1ull << column;
        for (int j = 0; j < k; ++j)
          if ((x >> j & 1) && j + k + 1 - 2 * REST_BITS + SQUARE_BITS >= 0)
            sum += 1ull << (j + k + 1 - 2 * REST_BITS + SQUARE_BITS);
      }
      squares[x] = static_cast<u16>(sum);
    }
    return squares;
  }();
  return table[u];
}

// `position` has 17 bits after those that choose the row.
s64 interpolated(const Table& table, u32 position) {
  const Coefficients& c = table.rows[position >> REST_BITS];
  u32 u = position & ((1u << REST_BITS) - 1);
  return (static_cast<s64>(c[0]) << table.shift) + table.bias + static_cast<s64>(c[1]) * u +
         c[2] * (static_cast<s64>(truncated_square(u)) << table.square_shift);
}

u32 exponent_of(u32 x) { return x >> MANTISSA & 255; }
u32 fraction_of(u32 x) { return x & 0x7FFFFF; }
bool is_nan(u32 x) { return (x & ~SIGN) > INFINITE; }
bool is_zero(u32 x) { return exponent_of(x) == 0; }  // or subnormal

// A significand with so many bits after its leading one, or twice that, and the exponent that goes with the former.
u32 joined(u32 significand, int bits, s32 exponent) {
  exponent += static_cast<s32>(significand >> (bits + 1));
  return exponent <= 0 ? 0 : static_cast<u32>(exponent) << bits | (significand & ((1u << bits) - 1));
}

// magnitude * 2^unit, truncated.
u32 truncated(u64 magnitude, s32 unit) {
  if (!magnitude) return 0;
  int lead = 63 - __builtin_clzll(magnitude);
  u64 significand = lead >= MANTISSA ? magnitude >> (lead - MANTISSA) : magnitude << (MANTISSA - lead);
  return static_cast<u32>(lead + unit + 127) << MANTISSA | fraction_of(static_cast<u32>(significand));
}

// |x| in fixed point with so many bits after the point: its low 32 bits, truncated.
u32 fixed(u32 x, int bits) {
  s32 up = static_cast<s32>(exponent_of(x)) - 127 - MANTISSA + bits;
  u32 significand = fraction_of(x) | 1u << MANTISSA;
  return up > 31 || up < -31 ? 0 : up >= 0 ? significand << up : significand >> -up;
}

// A root halves the exponent: what is left of the operand lies in the two octaves from 1 to 4.
u32 root_position(u32 x) { return (~exponent_of(x) & 1) << MANTISSA | fraction_of(x); }
s32 root_exponent(u32 x) { return (static_cast<s32>(exponent_of(x)) - 127) >> 1; }

// The sine of so many turns, with 25 bits after the point, from a quarter of the wave.
u32 wave(u32 turns) {
  u32 position = turns & 0x7FFFFF;
  if (turns >> MANTISSA & 1) position ^= 0x7FFFFF;
  constexpr s64 one = 1ll << 38;
  s64 value = interpolated(SIN, position);
  return (turns >> 24 & 1) << 31 | truncated(static_cast<u64>(value < one ? value : one), -38);
}

}  // namespace

u32 unit_rcp(u32 x) {
  u32 sign = x & SIGN;
  if (is_nan(x)) return CANONICAL_NAN;
  if (is_zero(x)) return sign | INFINITE;
  if (exponent_of(x) == 255) return sign;
  s64 value = interpolated(RCP, fraction_of(x) << 1);
  return sign | joined(static_cast<u32>(value >> REST_BITS), MANTISSA, 253 - static_cast<s32>(exponent_of(x)));
}

u32 unit_rsqrt(u32 x) {
  if (is_nan(x) || (x & SIGN && !is_zero(x))) return CANONICAL_NAN;
  if (is_zero(x)) return (x & SIGN) | INFINITE;
  if (x == INFINITE) return 0;
  u32 position = root_position(x);
  u32 value = position ? static_cast<u32>(interpolated(RSQRT, position) >> REST_BITS) : 1u << 24;
  return joined(value, MANTISSA, 126 - root_exponent(x));
}

u32 unit_sqrt(u32 x) {
  if (is_nan(x) || (x & SIGN && !is_zero(x))) return CANONICAL_NAN;
  if (is_zero(x)) return x & SIGN;
  if (x == INFINITE) return x;
  return joined(static_cast<u32>(interpolated(SQRT, root_position(x)) >> REST_BITS), MANTISSA, 127 + root_exponent(x));
}

u32 unit_ex2(u32 x) {
  if (is_nan(x)) return CANONICAL_NAN;
  if (exponent_of(x) >= 127 + 8) return x & SIGN ? 0 : INFINITE;
  u32 bits = fixed(x, MANTISSA), fraction = fraction_of(bits);
  s32 whole = static_cast<s32>(bits >> MANTISSA);
  if (x & SIGN) {
    whole = fraction ? ~whole : -whole;
    fraction = fraction ? fraction ^ 0x7FFFFF : 0;
  }
  if (whole >= 128) return INFINITE;
  return joined(static_cast<u32>(interpolated(EX2, fraction) >> REST_BITS), MANTISSA, whole + 127);
}

u32 unit_lg2(u32 x) {
  if (is_nan(x) || (x & SIGN && !is_zero(x))) return CANONICAL_NAN;
  if (is_zero(x)) return SIGN | INFINITE;
  if (x == INFINITE || x == ONE) return x == ONE ? 0 : x;
  s64 whole = static_cast<s64>(exponent_of(x)) - 127;
  s64 value = whole * (1ll << 36) + (interpolated(LG2, fraction_of(x)) >> 2);
  return value < 0 ? SIGN | truncated(static_cast<u64>(~value), -36) : truncated(static_cast<u64>(value), -36);
}

u32 unit_tanh(u32 x) {
  struct Octave {
    int first, index_bits;  // in TANH_ROWS
  };
  static constexpr Octave octaves[] = {{0, 0},  {1, 0},  {2, 0},  {3, 1},  {5, 1}, {7, 2},
                                       {11, 2}, {15, 2}, {19, 3}, {27, 4}, {43, 3}};
  if (is_nan(x)) return CANONICAL_NAN;
  s32 octave = static_cast<s32>(exponent_of(x)) - 127;
  if (octave < -8) return x;
  if (octave > 2) return (x & SIGN) | ONE;
  const Octave& o = octaves[octave + 8];
  u32 position = (static_cast<u32>(o.first) << REST_BITS) + (fraction_of(x) >> (MANTISSA - REST_BITS - o.index_bits));
  s32 unit = (octave < 0 ? octave : -1) - MANTISSA - TANH.shift;
  return (x & SIGN) | truncated(static_cast<u64>(interpolated(TANH, position)), unit);
}

u32 unit_sin(u32 turns) {
  if (exponent_of(turns) == 255) return CANONICAL_NAN;
  return wave(fixed(turns, 25)) ^ (turns & SIGN);
}

u32 unit_cos(u32 turns) {
  if (exponent_of(turns) == 255) return CANONICAL_NAN;
  return wave(fixed(turns, 25) + (1u << MANTISSA));
}

namespace {

constexpr int HIGH_MANTISSA = 20;
constexpr u32 HIGH_INFINITE = 0x7FF00000, HIGH_NAN = 0x7FFFFFFF;

u32 exponent64(u32 high) { return high >> HIGH_MANTISSA & 2047; }
u32 fraction64(u32 high) { return (high & 0xFFFFF) << (MANTISSA - HIGH_MANTISSA); }

}  // namespace

u32 unit_rcp64(u32 high) {
  u32 sign = high & SIGN;
  if ((high & ~SIGN) > HIGH_INFINITE) return HIGH_NAN;
  if (exponent64(high) == 0) return sign | HIGH_INFINITE;
  if (exponent64(high) == 2047) return sign;
  s64 value = interpolated(RCP, fraction64(high) << 1) >> (REST_BITS + MANTISSA - HIGH_MANTISSA);
  return sign | joined(static_cast<u32>(value), HIGH_MANTISSA, 2045 - static_cast<s32>(exponent64(high)));
}

u32 unit_rsqrt64(u32 high) {
  bool zero = exponent64(high) == 0;
  if ((high & ~SIGN) > HIGH_INFINITE || (high & SIGN && !zero)) return HIGH_NAN;
  if (zero) return (high & SIGN) | HIGH_INFINITE;
  if (high == HIGH_INFINITE) return 0;
  u32 position = (~exponent64(high) & 1) << MANTISSA | fraction64(high);
  s64 value = position ? interpolated(RSQRT, position) >> (REST_BITS + MANTISSA - HIGH_MANTISSA) : 2ll << HIGH_MANTISSA;
  return joined(static_cast<u32>(value), HIGH_MANTISSA, 1022 - ((static_cast<s32>(exponent64(high)) - 1023) >> 1));
}

}  // namespace sim
