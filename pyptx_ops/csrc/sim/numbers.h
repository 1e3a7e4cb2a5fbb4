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

inline u32 f32_bits(float value) { return value != value ? CANONICAL_NAN : bits_to<u32>(value); }
inline float f32_of(u32 bits) { return bits_to<float>(bits); }

inline float flushed(float value) {  // subnormals become zeros of the same sign
  u32 bits = bits_to<u32>(value);
  return (bits & 0x7F800000) ? value : bits_to<float>(bits & 0x80000000);
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

}  // namespace sim
