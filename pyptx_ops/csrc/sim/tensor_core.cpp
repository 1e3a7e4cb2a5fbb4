// The arithmetic is that of Hopper's tensor cores: exact products and C are aligned to the largest exponent, truncated at
// 25 fractional bits (13 for 8-bit floats), added, and rounded toward zero (an f16 result to nearest even).
#include "tensor_core.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "numbers.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SIM_VECTORISED __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define SIM_VECTORISED
#endif

namespace sim {
namespace {

constexpr int MAX_DEPTH = 32, FRACTION = 25, FRACTION_8 = 13, MANTISSA_8 = 13;
constexpr s32 NO_EXPONENT = -10000;

struct Format {
  int exponent_bits, mantissa_bits, bias, bytes, unused_bits;
  bool infinities;
};

constexpr Format format_of(Type type) {
  switch (type) {
    case Type::bf16: return {8, 7, 127, 2, 0, true};
    case Type::f16: return {5, 10, 15, 2, 0, true};
    case Type::tf32: return {8, 10, 127, 4, 13, true};
    case Type::e4m3: return {4, 3, 7, 1, 0, false};
    case Type::e5m2: return {5, 2, 15, 1, 0, true};
    default: return {8, 23, 127, 4, 0, true};
  }
}

template <Type T>
using Tag = std::integral_constant<Type, T>;

// Calls f with the type as a constant.
template <class F>
void with_type(Type type, F f) {
  switch (type) {
    case Type::bf16: return f(Tag<Type::bf16>());
    case Type::f16: return f(Tag<Type::f16>());
    case Type::tf32: return f(Tag<Type::tf32>());
    case Type::e4m3: return f(Tag<Type::e4m3>());
    case Type::e5m2: return f(Tag<Type::e5m2>());
    case Type::f32: return f(Tag<Type::f32>());
    default: throw Problem("unsupported", "tensor cores do not have this type");
  }
}

// value = significand * 2^(exponent - mantissa_bits); whether it is an infinity or NaN
inline bool decode(u32 bits, const Format& f, s32& significand, s32& exponent) {
  bits >>= f.unused_bits;
  s32 mantissa = static_cast<s32>(bits & ((1u << f.mantissa_bits) - 1));
  s32 e = static_cast<s32>(bits >> f.mantissa_bits & ((1u << f.exponent_bits) - 1));
  s32 magnitude = e ? mantissa | 1 << f.mantissa_bits : mantissa;
  significand = bits >> (f.exponent_bits + f.mantissa_bits) & 1 ? -magnitude : magnitude;
  exponent = magnitude ? (e ? e : 1) - f.bias : NO_EXPONENT;
  if (e != (1 << f.exponent_bits) - 1) return false;
  return f.infinities || mantissa == (1 << f.mantissa_bits) - 1;
}

double real(u32 bits, const Format& f) {
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

// One row of A (significand, exponent) times B: for each column the aligned sum of products, without C.
SIM_VECTORISED void dot(int n, int depth, int left, const s32* as, const s32* ae, const s32* bs, const s32* be,
                        s32* largest, s32* sum) {
  for (int k = 0; k < depth; ++k) {
    const s32* e = be + k * TILE_COLUMNS;
    for (int j = 0; j < n; ++j) {
      s32 product = ae[k] + e[j];
      largest[j] = product > largest[j] ? product : largest[j];
    }
  }
  for (int j = 0; j < n; ++j) sum[j] = 0;
  for (int k = 0; k < depth; ++k) {
    const s32 *s = bs + k * TILE_COLUMNS, *e = be + k * TILE_COLUMNS;
    for (int j = 0; j < n; ++j) {
      s32 product = as[k] * s[j], magnitude = product < 0 ? -product : product;
      s32 shift = largest[j] - ae[k] - e[j];
      shift = shift > 31 ? 31 : shift;
      s32 aligned = static_cast<s32>(static_cast<u32>(magnitude << left) >> static_cast<u32>(shift));
      sum[j] += product < 0 ? -aligned : aligned;
    }
  }
}

// total * 2^exponent as f32 with so many bits of mantissa, rounded toward zero.
u32 truncated(s64 total, s32 exponent, int mantissa_bits) {
  if (total == 0) return 0;
  u32 sign = total < 0 ? 0x80000000u : 0;
  u64 magnitude = static_cast<u64>(total < 0 ? -total : total);
  int lead = 63 - __builtin_clzll(magnitude);
  s32 e = exponent + lead;
  u32 keep = ~0u << (23 - mantissa_bits);
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

// B of a tile, decoded: [k][column].
struct Columns {
  s32 significand[MAX_DEPTH * TILE_COLUMNS], exponent[MAX_DEPTH * TILE_COLUMNS];
  bool odd[TILE_COLUMNS];  // with an infinity or NaN
};

u32 sign_of(Type type, bool negate) { return negate ? 1u << (8 * format_of(type).bytes - 1) : 0; }

u32 special(const Tile& tile, const u8* row, const u8* column, u32 start) {  // with an infinity or NaN among them
  Format a = format_of(tile.a), b = format_of(tile.b);
  double sum = real(start, format_of(tile.d));
  for (int k = 0; k < tile.depth; ++k)
    sum += real(element(row, k, a.bytes) ^ sign_of(tile.a, tile.negate_a), a) *
           real(element(column, k, b.bytes) ^ sign_of(tile.b, tile.negate_b), b);
  if (tile.d == Type::f16) return sum != sum ? 0x7FFF : sum < 0 ? 0xFC00 : 0x7C00;
  return sum != sum ? CANONICAL_NAN : f32_bits(static_cast<float>(sum));
}

template <Type SUM>
void multiply_row(const Tile& tile, const s32* as, const s32* ae, bool odd_a, const Columns& b, const u8* row,
                  const u8* columns, u32* out) {
  constexpr Format c = format_of(SUM);
  s32 largest[TILE_COLUMNS], sum[TILE_COLUMNS], cs[TILE_COLUMNS], ce[TILE_COLUMNS];
  bool odd_c[TILE_COLUMNS];
  for (int j = 0; j < tile.columns; ++j) {
    odd_c[j] = decode(out[j], c, cs[j], ce[j]);
    largest[j] = ce[j];
  }
  bool narrow = format_of(tile.a).bytes == 1;
  int fraction = narrow ? FRACTION_8 : FRACTION, mantissa = narrow ? MANTISSA_8 : 23;
  int left = fraction - format_of(tile.a).mantissa_bits - format_of(tile.b).mantissa_bits;
  dot(tile.columns, tile.depth, left, as, ae, b.significand, b.exponent, largest, sum);
  for (int j = 0; j < tile.columns; ++j) {
    if (odd_a || b.odd[j] || odd_c[j]) {
      out[j] = special(tile, row, columns + j * TILE_BYTES, out[j]);
      continue;
    }
    s64 total = sum[j];
    s32 shift = largest[j] - ce[j] + c.mantissa_bits;  // after `fraction` to the left
    s64 magnitude = static_cast<s64>(cs[j] < 0 ? -cs[j] : cs[j]) << fraction >> (shift > 62 ? 62 : shift);
    total += cs[j] < 0 ? -magnitude : magnitude;
    s32 unit = largest[j] - fraction;
    out[j] = SUM == Type::f16 ? nearest_half(total, unit) : truncated(total, unit, mantissa);
  }
}

void multiply_floats(const Tile& tile, const u8* a, const u8* b, u32* c) {
  static thread_local Columns columns;
  with_type(tile.b, [&](auto type) {
    constexpr Format format = format_of(decltype(type)::value);
    u32 sign = sign_of(tile.b, tile.negate_b);
    for (int j = 0; j < tile.columns; ++j) {
      columns.odd[j] = false;
      for (int k = 0; k < tile.depth; ++k) {
        int at = k * TILE_COLUMNS + j;
        columns.odd[j] |= decode(element(b + j * TILE_BYTES, k, format.bytes) ^ sign, format, columns.significand[at],
                                 columns.exponent[at]);
      }
    }
  });
  Format format = format_of(tile.a);
  for (int i = 0; i < tile.rows; ++i) {
    const u8* row = a + i * TILE_BYTES;
    s32 as[MAX_DEPTH], ae[MAX_DEPTH];
    bool odd = false;
    for (int k = 0; k < tile.depth; ++k)
      odd |= decode(element(row, k, format.bytes) ^ sign_of(tile.a, tile.negate_a), format, as[k], ae[k]);
    auto* multiply_one = tile.d == Type::f16 ? multiply_row<Type::f16> : multiply_row<Type::f32>;
    multiply_one(tile, as, ae, odd, columns, row, b, c + i * TILE_COLUMNS);
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

void multiply_integers(const Tile& tile, const u8* a, const u8* b, u32* c) {
  for (int i = 0; i < tile.rows; ++i)
    for (int j = 0; j < tile.columns; ++j) {
      u32& out = c[i * TILE_COLUMNS + j];
      s64 total = static_cast<s32>(out);
      for (int k = 0; k < tile.depth; ++k) {
        s32 x = integer(a + i * TILE_BYTES, k, tile.a), y = integer(b + j * TILE_BYTES, k, tile.b);
        total += tile.exclusive ? x ^ y : x * y;
      }
      if (tile.saturate)
        total = std::min<s64>(std::max<s64>(total, std::numeric_limits<s32>::min()), std::numeric_limits<s32>::max());
      out = static_cast<u32>(total);
    }
}

}  // namespace

void multiply(const Tile& tile, const u8* a, const u8* b, u32* c) {
  if (tile.d == Type::s32)
    multiply_integers(tile, a, b, c);
  else
    multiply_floats(tile, a, b, c);
}

}  // namespace sim
