// The arithmetic is that of Hopper's tensor cores: exact products and C are aligned to the largest exponent, truncated at
// 25 fractional bits (13 for 8-bit floats), added, and rounded toward zero (an f16 result to nearest even). It is written
// down here for one sum; tensor_block.h has the same for many, where their numbers allow it.
#include "tensor_core.h"

#include <algorithm>
#include <cstring>

#include "forms.h"
#include "numbers.h"

namespace sim {
namespace {

constexpr int MARGIN = 10;  // of bits in front of what is cut off, so that no shift is negative
constexpr Precision WIDE{25, -1}, NARROW{13, ~0x3FF};

// value = significand * 2^(exponent - mantissa_bits); whether it is an infinity or NaN
inline bool decode(u32 bits, const ElementFormat& f, s32& significand, s32& exponent) {
  bits >>= f.unused_bits;
  s32 mantissa = static_cast<s32>(bits & ((1u << f.mantissa_bits) - 1));
  s32 e = static_cast<s32>(bits >> f.mantissa_bits & ((1u << f.exponent_bits) - 1));
  s32 magnitude = e ? mantissa | 1 << f.mantissa_bits : mantissa;
  significand = bits >> (f.exponent_bits + f.mantissa_bits) & 1 ? -magnitude : magnitude;
  exponent = magnitude ? (e ? e : 1) - f.bias : NO_EXPONENT;
  if (e != (1 << f.exponent_bits) - 1) return false;
  return f.infinities || mantissa == (1 << f.mantissa_bits) - 1;
}

double real(u32 bits, const ElementFormat& f) {
  s32 significand, exponent;
  if (!decode(bits, f, significand, exponent))
    return significand ? std::ldexp(significand, exponent - f.mantissa_bits) : 0.0;
  bool infinite = f.infinities && (bits >> f.unused_bits & ((1u << f.mantissa_bits) - 1)) == 0;
  double value = infinite ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  return significand < 0 ? -value : value;
}

inline u32 element(const u8* row, int index, int bytes) {
  u32 bits = 0;
  std::memcpy(&bits, row + index * bytes, static_cast<size_t>(bytes));
  return bits;
}

// total * 2^exponent as f32, rounded toward zero to the bits that are kept.
u32 truncated(s64 total, s32 exponent, u32 keep) {
  if (total == 0) return 0;
  u32 sign = total < 0 ? 0x80000000u : 0;
  u64 magnitude = static_cast<u64>(total < 0 ? -total : total);
  int lead = 63 - __builtin_clzll(magnitude);
  s32 e = exponent + lead;
  if (e < -126) {
    int drop = -126 - 23 - exponent;
    u64 kept = drop > 62 ? 0 : drop >= 0 ? magnitude >> drop : magnitude << -drop;
    return sign | (static_cast<u32>(kept) & keep);
  }
  if (e > 127) return sign | 0x7F800000;
  u32 mantissa = static_cast<u32>(lead >= 23 ? magnitude >> (lead - 23) : magnitude << (23 - lead)) & 0x7FFFFF;
  return sign | static_cast<u32>(e + 127) << 23 | (mantissa & keep);
}

// total * 2^exponent as f16, rounded to nearest even.
u32 nearest_half(s64 total, s32 exponent) {
  if (total == 0) return 0;
  u64 magnitude = static_cast<u64>(total < 0 ? -total : total);
  int lead = 63 - __builtin_clzll(magnitude);
  s32 unit = std::max(exponent + lead - 10, -24);
  int drop = unit - exponent;
  u64 kept = drop > 62 ? 0 : drop >= 0 ? magnitude >> drop : magnitude << -drop;
  if (drop > 0 && drop <= 62) {
    u64 lost = magnitude & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    kept += lost > half || (lost == half && (kept & 1));
  }
  float value = std::ldexp(static_cast<float>(kept), unit);
  return f16_bits(total < 0 ? -value : value);
}

u32 sign_of(Type type, bool negate) { return negate ? 1u << (8 * element_format(type).bytes - 1) : 0; }

u32 special(const Tile& tile, const u8* row, const u8* column, u32 start) {  // with an infinity or NaN among them
  ElementFormat a = element_format(tile.a), b = element_format(tile.b);
  double sum = real(start, element_format(tile.d));
  for (int k = 0; k < tile.depth; ++k)
    sum += real(element(row, k, a.bytes) ^ sign_of(tile.a, tile.negate_a), a) *
           real(element(column, k, b.bytes) ^ sign_of(tile.b, tile.negate_b), b);
  if (tile.d == Type::f16) return sum != sum ? 0x7FFF : sum < 0 ? 0xFC00 : 0x7C00;
  return sum != sum ? CANONICAL_NAN : f32_bits(static_cast<float>(sum));
}

// One element of D, whatever its numbers are.
u32 sum_of(const Tile& tile, const Precision& precision, const u8* row, const u8* column, u32 start) {
  ElementFormat a = element_format(tile.a), b = element_format(tile.b), c = element_format(tile.d);
  s32 as[BLOCK_DEPTH], ae[BLOCK_DEPTH], bs[BLOCK_DEPTH], be[BLOCK_DEPTH], cs, ce;
  bool odd = decode(start, c, cs, ce);
  s32 largest = ce;
  for (int k = 0; k < tile.depth; ++k) {
    odd |= decode(element(row, k, a.bytes) ^ sign_of(tile.a, tile.negate_a), a, as[k], ae[k]);
    odd |= decode(element(column, k, b.bytes) ^ sign_of(tile.b, tile.negate_b), b, bs[k], be[k]);
    largest = std::max(largest, ae[k] + be[k]);
  }
  if (odd) return special(tile, row, column, start);
  s64 total = 0;
  auto add = [&](s64 significand, int fraction_bits, s32 exponent) {
    s64 magnitude = std::abs(significand) << (precision.fraction + MARGIN - fraction_bits);
    magnitude >>= std::min(largest - exponent + MARGIN, 62);
    total += significand < 0 ? -magnitude : magnitude;
  };
  add(cs, c.mantissa_bits, ce);
  for (int k = 0; k < tile.depth; ++k)
    add(static_cast<s64>(as[k]) * bs[k], a.mantissa_bits + b.mantissa_bits, ae[k] + be[k]);
  s32 unit = largest - precision.fraction;
  return tile.d == Type::f16 ? nearest_half(total, unit) : truncated(total, unit, static_cast<u32>(precision.keep));
}

void multiply_floats(const Tile& tile, const u8* a, const u8* b, Fragment c) {
  auto* decode = vectors() ? avx2::decode_block : portable::decode_block;
  auto* multiply = vectors() ? avx2::multiply_block : portable::multiply_block;
  const Precision& precision = element_format(tile.a).bytes == 1 ? NARROW : WIDE;
  Block rows, columns;
  decode(tile.a, a, tile.rows, tile.depth, sign_of(tile.a, tile.negate_a), rows);
  for (int first = 0; first < tile.columns; first += BLOCK) {
    int count = std::min(BLOCK, tile.columns - first);
    const u8* place = b + first * TILE_BYTES;
    u32 left = (1u << tile.rows) - 1;
    if (tile.d == Type::f32) {
      decode(tile.b, place, count, tile.depth, sign_of(tile.b, tile.negate_b), columns);
      if (in_range(rows, columns))
        left = multiply(rows, tile.rows, columns, count, tile.depth, precision, {c.registers + first / 2});
    }
    for (; left; left &= left - 1) {
      int row = __builtin_ctz(left);
      for (int j = first; j < first + count; ++j)
        c.set(row, j, sum_of(tile, precision, a + row * TILE_BYTES, b + j * TILE_BYTES, c.get(row, j)));
    }
  }
}

s32 integer(const u8* row, int index, Type type) {
  switch (type) {
    case Type::s8: return static_cast<s32>(static_cast<int8_t>(row[index]));
    case Type::u8: return row[index];
    case Type::b1: return row[index / 8] >> (index % 8) & 1;
    default: break;
  }
  s32 half = row[index / 2] >> (4 * (index % 2)) & 15;
  return type == Type::s4 && half > 7 ? half - 16 : half;
}

void multiply_integers(const Tile& tile, const u8* a, const u8* b, Fragment c) {
  for (int i = 0; i < tile.rows; ++i)
    for (int j = 0; j < tile.columns; ++j) {
      s64 total = static_cast<s32>(c.get(i, j));
      for (int k = 0; k < tile.depth; ++k) {
        s32 x = integer(a + i * TILE_BYTES, k, tile.a), y = integer(b + j * TILE_BYTES, k, tile.b);
        total += tile.exclusive ? x ^ y : x * y;
      }
      if (tile.saturate)
        total = std::min<s64>(std::max<s64>(total, std::numeric_limits<s32>::min()), std::numeric_limits<s32>::max());
      c.set(i, j, static_cast<u32>(total));
    }
}

}  // namespace

void multiply(const Tile& tile, const u8* a, const u8* b, Fragment c) {
  if (tile.d == Type::s32)
    multiply_integers(tile, a, b, c);
  else
    multiply_floats(tile, a, b, c);
}

}  // namespace sim
