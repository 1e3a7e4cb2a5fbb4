// Sixteen rows of A times sixteen columns of B by vectors, where no number leaves the range in which f32 is exact. This
// file is compiled once for every processor and once for AVX2 and FMA, with the same results; SIM_PATH names the copy.
//
// A product of two elements is exact in f32, and times 2^(fraction - largest exponent) it is an integer and the bits that
// tensor cores truncate: the conversion to s32 aligns and truncates at once. So is C.
#include <type_traits>

namespace sim {
namespace SIM_PATH {

typedef s16 Shorts __attribute__((vector_size(2 * BLOCK), may_alias));
typedef s32 Words __attribute__((vector_size(2 * BLOCK), may_alias));  // half a block
typedef u32 Bits32 __attribute__((vector_size(2 * BLOCK)));
typedef float Floats __attribute__((vector_size(2 * BLOCK), may_alias));
typedef s16 HalfShorts __attribute__((vector_size(BLOCK)));

inline bool any(const Words& mask) {
  u64 parts[4];
  std::memcpy(parts, &mask, sizeof parts);
  return parts[0] | parts[1] | parts[2] | parts[3];
}

// What is remembered of the elements of a block, by lane.
struct Found {
  Words least = Words{} - NO_EXPONENT, most = Words{} + NO_EXPONENT, odd = {};
};

// Elements from their bits.
template <Type T>
inline void decode_half(const Words& bits, float* value, s16* exponent, Found& found) {
  constexpr ElementFormat f = element_format(T);
  constexpr s32 top = (1 << f.exponent_bits) - 1, fraction = (1 << f.mantissa_bits) - 1;
  constexpr int width = f.exponent_bits + f.mantissa_bits;
  Words x = bits >> f.unused_bits, e = x >> f.mantissa_bits & top, mantissa = x & fraction;
  Words magnitude = mantissa | ((e != 0) & 1 << f.mantissa_bits), some = magnitude != 0;
  Words scale = e - (e == 0) - f.bias;
  found.odd |= (e == top) & (f.infinities || mantissa == fraction);
  Words low = some ? scale : Words{} - NO_EXPONENT, high = some ? scale : Words{} + NO_EXPONENT;
  found.least = low < found.least ? low : found.least;
  found.most = high > found.most ? high : found.most;
  Words number = x << (31 - width);  // of formats that are the upper bits of f32
  if constexpr (f.exponent_bits != 8)
    number = (Words)(__builtin_convertvector(magnitude, Floats) * (Floats)((scale + (127 - f.mantissa_bits)) << 23)) |
             (x & 1 << width) << (31 - width);
  std::memcpy(value, &number, sizeof number);
  HalfShorts shorts = __builtin_convertvector(high, HalfShorts);
  std::memcpy(exponent, &shorts, sizeof shorts);
}

template <Type T>
void decode_lines(const u8* rows, int count, int depth, u32 sign, Block& block) {
  constexpr int bytes = element_format(T).bytes;
  using Raw = std::conditional_t<bytes == 1, u8, std::conditional_t<bytes == 2, u16, u32>>;
  typedef Raw Raws __attribute__((vector_size(bytes * BLOCK / 2)));
  Raw bits[BLOCK_DEPTH][BLOCK], row[TILE_BYTES / bytes];
  if (count < BLOCK) std::memset(bits, 0, sizeof bits);
  for (int i = 0; i < count; ++i) {
    std::memcpy(row, rows + i * TILE_BYTES, TILE_BYTES);
    for (int k = 0; k < depth; ++k) bits[k][lane_of_line(i)] = row[k];
  }
  Found found[2];
  for (int k = 0; k < depth; ++k)
    for (int h = 0; h < 2; ++h) {
      Raws raw;
      std::memcpy(&raw, bits[k] + BLOCK / 2 * h, sizeof raw);
      Words whole = __builtin_convertvector(raw, Words) ^ static_cast<s32>(sign);
      decode_half<T>(whole, block.value[k] + BLOCK / 2 * h, block.exponent[k] + BLOCK / 2 * h, found[h]);
    }
  block.least = -NO_EXPONENT, block.most = NO_EXPONENT, block.odd = any(found[0].odd | found[1].odd);
  for (const Found& half : found)
    for (int i = 0; i < BLOCK / 2; ++i) {
      block.least = half.least[i] < block.least ? half.least[i] : block.least;
      block.most = half.most[i] > block.most ? half.most[i] : block.most;
    }
}

void decode_block(Type type, const u8* rows, int count, int depth, u32 sign, Block& block) {
  with_type(type, [&](auto tag) { decode_lines<decltype(tag)::value>(rows, count, depth, sign, block); });
}

// The sums of a block of C, step by step: what one step leaves for all rows, the next one takes up.
struct Sums {
  int rows, halves, depth;
  Precision precision;
  u32 refused = 0;  // rows with a number that is out of range
  Words sum[BLOCK][2], unit[BLOCK][2];
  Floats start[BLOCK][2], scale[BLOCK][2];  // C, and what aligns products and C
  Shorts largest[BLOCK];                    // exponent of a product

  void refuse(int row, const Words& where) { refused |= static_cast<u32>(any(where)) << row; }
  bool skips(int row) const { return refused >> row & 1; }
};

// Eight columns of a row lie in two registers.
constexpr size_t REGISTER_PART = sizeof(Words) / 2;

inline u32* part_of(const Fragment& c, int row, int half, int odd) {
  return c.place(static_cast<u32>(row), static_cast<u32>(8 * half + odd));
}

inline void take_c(Sums& s, const Fragment& c) {
  for (int row = 0; row < s.rows; ++row)
    for (int h = 0; h < s.halves; ++h)
      for (int odd = 0; odd < 2; ++odd)
        std::memcpy(reinterpret_cast<u8*>(&s.start[row][h]) + odd * REGISTER_PART, part_of(c, row, h, odd),
                    REGISTER_PART);
}

inline void find_largest(Sums& s, const Block& a, const Block& b) {
  for (int row = 0; row < s.rows; ++row) {
    Shorts largest = Shorts{} + static_cast<s16>(2 * NO_EXPONENT);
    int line = lane_of_line(row);
    for (int k = 0; k < s.depth; ++k) {
      Shorts e = *reinterpret_cast<const Shorts*>(b.exponent[k]) + a.exponent[k][line];
      largest = e > largest ? e : largest;
    }
    s.largest[row] = largest;
  }
}

inline void align(Sums& s) {
  for (int row = 0; row < s.rows; ++row)
    for (int h = 0; h < s.halves; ++h) {
      HalfShorts of_products;
      std::memcpy(&of_products, reinterpret_cast<const u8*>(&s.largest[row]) + h * sizeof of_products,
                  sizeof of_products);
      Words most = __builtin_convertvector(of_products, Words), was = (Words)s.start[row][h];
      Words e = was >> 23 & 255, some = (was & 0x7FFFFFFF) != 0;
      Words of_c = some ? e - (e == 0) - 127 : Words{} + NO_EXPONENT;
      most = of_c > most ? of_c : most;
      s.refuse(row, (e == 255) | (some & (most < LEAST_EXPONENT)));
      Words unit = most < LEAST_EXPONENT ? Words{} + LEAST_EXPONENT : most;
      s.unit[row][h] = unit;
      s.scale[row][h] = (Floats)((127 + s.precision.fraction - unit) << 23);
    }
}

template <int HALVES>
inline void add_products(Sums& s, const Block& a, const Block& b) {
  for (int row = 0; row < s.rows; ++row) {
    if (s.skips(row)) continue;
    Words sum[HALVES] = {};
    int line = lane_of_line(row);
    for (int k = 0; k < s.depth; ++k)
      for (int h = 0; h < HALVES; ++h) {
        Floats product = *reinterpret_cast<const Floats*>(b.value[k] + 8 * h) * a.value[k][line] * s.scale[row][h];
        sum[h] += __builtin_convertvector(product, Words);
      }
    for (int h = 0; h < HALVES; ++h) s.sum[row][h] = sum[h];
  }
}

inline void add_c(Sums& s) {
  for (int row = 0; row < s.rows; ++row)
    for (int h = 0; h < s.halves && !s.skips(row); ++h) {
      Words start = __builtin_convertvector(s.start[row][h] * s.scale[row][h], Words);
      Words total = (Words)((Bits32)s.sum[row][h] + (Bits32)start);
      s.refuse(row, ((s.sum[row][h] ^ total) & (start ^ total)) < 0);  // past 32 bits
      s.sum[row][h] = total;
    }
}

inline void round(const Sums& s, const Fragment& c) {
  for (int row = 0; row < s.rows; ++row)
    for (int h = 0; h < s.halves && !s.skips(row); ++h) {
      Words sign = s.sum[row][h] >> 31, magnitude = (s.sum[row][h] ^ sign) - sign;
      magnitude &= ~(magnitude >> 24);  // without the bit that rounding to 24 bits would look at
      Words kept = (Words)__builtin_convertvector(magnitude, Floats) & s.precision.keep;
      Floats unit = (Floats)((127 - s.precision.fraction + s.unit[row][h]) << 23);
      Words result = (Words)((Floats)kept * unit) | (sign & static_cast<s32>(0x80000000));
      for (int odd = 0; odd < 2; ++odd)
        std::memcpy(part_of(c, row, h, odd), reinterpret_cast<u8*>(&result) + odd * REGISTER_PART, REGISTER_PART);
    }
}

u32 multiply_block(const Block& a, int rows, const Block& b, int columns, int depth, const Precision& precision,
                   Fragment c) {
  Sums sums;
  sums.rows = rows, sums.halves = columns > 8 ? 2 : 1, sums.depth = depth, sums.precision = precision;
  take_c(sums, c);
  find_largest(sums, a, b);
  align(sums);
  sums.halves == 2 ? add_products<2>(sums, a, b) : add_products<1>(sums, a, b);
  add_c(sums);
  round(sums, c);
  return sums.refused;
}

}  // namespace SIM_PATH
}  // namespace sim
