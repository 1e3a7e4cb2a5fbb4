// Conversions between number formats, bit-exact.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "program.h"

namespace sim {

template <class To, class From>
inline To bits_to(From from) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

constexpr u32 CANONICAL_NAN = 0x7FFFFFFF;
constexpr float SMALLEST_NORMAL = 0x1p-126f;

// A stand-in for the NaN with which tensor copies fill what is out of bounds, and for which fma.oob gives zero. Its bits
// are not known; on an H200 0x7FFF, 0x7E00, 0x7FC0 and some hundred others do not have that effect.
constexpr u16 OUT_OF_BOUNDS_NAN = 0x7FFD;

inline u32 f32_bits(float value) { return value != value ? CANONICAL_NAN : bits_to<u32>(value); }
inline float f32_of(u32 bits) { return bits_to<float>(bits); }

inline float flushed(float value) {  // subnormals become zeros of the same sign
  u32 bits = bits_to<u32>(value);
  return (bits & 0x7F800000) ? value : bits_to<float>(bits & 0x80000000);
}

// The maximum: a number beats a NaN, and +0 beats -0.
inline float larger(float a, float b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return bits_to<u32>(a) >> 31 ? b : a;
  return a > b ? a : b;
}

inline float bf16_of(u16 bits) { return f32_of(static_cast<u32>(bits) << 16); }

inline float f16_of(u16 half) {
  u32 sign = static_cast<u32>(half & 0x8000) << 16, exponent = (half >> 10) & 31, mantissa = half & 1023;
  if (exponent == 31) return f32_of(sign | 0x7F800000 | mantissa << 13);
  if (exponent) return f32_of(sign | (exponent + 112) << 23 | mantissa << 13);
  float value = std::ldexp(static_cast<float>(mantissa), -24);
  return sign ? -value : value;
}

inline u16 bf16_bits(float value, bool toward_zero = false) {
  if (value != value) return 0x7FFF;
  u32 bits = bits_to<u32>(value);
  if (toward_zero) return static_cast<u16>(bits >> 16);
  return static_cast<u16>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline u16 f16_bits(float value, bool toward_zero = false) {
  if (value != value) return 0x7FFF;
  u32 bits = bits_to<u32>(value);
  u32 sign = (bits >> 16) & 0x8000, rest = bits & 0x7FFFFFFF;
  if (rest >= 0x7F800000) return static_cast<u16>(sign | 0x7C00);
  s32 exponent = static_cast<s32>(rest >> 23) - 112;
  u32 mantissa = rest & 0x7FFFFF, drop = 13;
  if (exponent <= 0) {  // subnormal: the leading one becomes explicit
    if (exponent < -11) return static_cast<u16>(sign);
    mantissa |= rest >> 23 ? 0x800000 : 0;
    drop = static_cast<u32>(14 - exponent);
    exponent = 0;
  }
  u32 kept = (static_cast<u32>(exponent) << 10) + (mantissa >> drop);
  u32 lost = mantissa & ((1u << drop) - 1), half = 1u << (drop - 1);
  if (!toward_zero && (lost > half || (lost == half && (kept & 1)))) ++kept;
  if (kept >= 0x7C00) kept = toward_zero ? 0x7BFF : 0x7C00;
  return static_cast<u16>(sign | kept);
}

// -- any number, from any format to any other -------------------------------------------------------------------------

struct FloatFormat {
  int exponent, mantissa;   // bits
  bool infinite = true;     // e4m3 has no infinities, and a single NaN
  u64 quiet = 0;            // the NaN that conversions give
  constexpr int bias() const { return (1 << (exponent - 1)) - 1; }
  constexpr int top() const { return exponent + mantissa; }  // the bit of the sign
  constexpr u64 infinity() const { return ((1ull << exponent) - 1) << mantissa; }
  constexpr u64 largest() const { return infinite ? infinity() - 1 : (1ull << top()) - 2; }
};

constexpr FloatFormat F64{11, 52, true, 0x7FFFFFFFFFFFFFFFull}, F32{8, 23, true, CANONICAL_NAN};
constexpr FloatFormat TF32{8, 10, true, 0x3FFFF}, F16{5, 10, true, 0x7FFF}, BF16{8, 7, true, 0x7FFF};
constexpr FloatFormat E4M3{4, 3, false, 0x7F}, E5M2{5, 2, true, 0x7F};

struct Number {
  enum { zero, finite, infinite, nan } kind = zero;
  bool negative = false;
  int exponent = 0;     // value = significand * 2^(exponent - 63), where the top bit of the significand is set
  u64 significand = 0;
};

inline Number number_of(bool negative, u64 integer) {
  Number n{integer ? Number::finite : Number::zero, negative, 63, integer};
  if (!integer) return n;
  int shift = __builtin_clzll(integer);
  n.significand <<= shift;
  n.exponent -= shift;
  return n;
}

inline Number number_of(u64 bits, const FloatFormat& format) {
  bool negative = bits >> format.top() & 1;
  bits &= (1ull << format.top()) - 1;
  if (bits > format.largest()) {
    bool infinity = format.infinite && bits == format.infinity();
    return {infinity ? Number::infinite : Number::nan, negative, 0, bits << (64 - format.mantissa)};
  }
  u64 fraction = bits & ((1ull << format.mantissa) - 1);
  int exponent = static_cast<int>(bits >> format.mantissa);
  Number n = number_of(negative, fraction | (exponent ? 1ull << format.mantissa : 0));
  n.exponent += (exponent ? exponent : 1) - format.bias() - format.mantissa;
  return n;
}

// Whether `kept` goes up by one when `lost` of 2^bits is dropped; bits up to 64, 65 for anything smaller than a half.
inline bool rounds_up(Word rounding, bool negative, bool odd, u64 lost, int bits) {
  u64 half = bits > 64 ? 0 : 1ull << (bits - 1);
  switch (rounding) {
    case Word::rm:
    case Word::rmi: return negative && lost;
    case Word::rp:
    case Word::rpi: return !negative && lost;
    case Word::rz:
    case Word::rzi: return false;
    case Word::rna: return half && lost >= half;
    default: return half && (lost > half || (lost == half && odd));
  }
}

// The bits of a number in a format. Beyond the largest value: infinity or the largest, as the rounding has it.
inline u64 packed(const Number& n, const FloatFormat& format, Word rounding, bool satfinite = false) {
  u64 sign = static_cast<u64>(n.negative) << format.top();
  if (n.kind == Number::zero) return sign;
  if (n.kind == Number::nan) return format.quiet;
  satfinite = satfinite || !format.infinite;
  if (n.kind == Number::infinite) return sign | (satfinite ? format.largest() : format.infinity());
  int exponent = n.exponent + format.bias(), drop = 63 - format.mantissa;
  if (exponent < 1) {  // subnormal
    drop += 1 - exponent;
    exponent = 1;
  }
  u64 kept = drop < 64 ? n.significand >> drop : 0;
  u64 lost = drop < 64 ? n.significand & ((1ull << drop) - 1) : n.significand;
  if (rounds_up(rounding, n.negative, kept & 1, lost, drop > 65 ? 65 : drop)) ++kept;
  bool beyond = exponent > 1 << format.exponent;
  u64 bits = beyond ? ~0ull : (static_cast<u64>(exponent - 1) << format.mantissa) + kept;
  if (bits <= format.largest()) return sign | bits;
  bool inward = rounding == Word::rz || rounding == (n.negative ? Word::rp : Word::rm);
  return sign | (satfinite || inward ? format.largest() : format.infinity());
}

// The nearest integer in that direction, as magnitude; saturated at 2^64 - 1.
inline u64 magnitude_of(const Number& n, Word rounding) {
  if (n.kind == Number::zero || n.kind == Number::nan) return 0;
  if (n.kind == Number::infinite || n.exponent > 63) return ~0ull;
  int drop = 63 - n.exponent;
  u64 kept = drop < 64 ? n.significand >> drop : 0;
  u64 lost = drop == 0 ? 0 : drop < 64 ? n.significand & ((1ull << drop) - 1) : n.significand;
  return kept + (drop && rounds_up(rounding, n.negative, kept & 1, lost, drop > 65 ? 65 : drop));
}

}  // namespace sim
