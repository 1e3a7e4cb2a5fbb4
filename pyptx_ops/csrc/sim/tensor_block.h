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

// Eight columns of a row between their two registers and a vector.
template <class F>
inline void copy_row(Fragment c, int row, int half, Words* words, F copy) {
  copy(c.place(row, 8 * half), words);
  copy(c.place(row, 8 * half + 1), reinterpret_cast<u8*>(words) + sizeof(Words) / 2);
}

// One row of C, as many halves of a block of it. False, and nothing done, where a number is out of range.
template <int HALVES>
inline bool row_by_block(const Block& a, int row, const Block& b, int depth, const Precision& precision, Fragment c) {
  Shorts largest = Shorts{} + static_cast<s16>(2 * NO_EXPONENT);
  int line = lane_of_line(row);
  for (int k = 0; k < depth; ++k) {
    Shorts e = *reinterpret_cast<const Shorts*>(b.exponent[k]) + a.exponent[k][line];
    largest = e > largest ? e : largest;
  }
  HalfShorts of_products[2];
  std::memcpy(of_products, &largest, sizeof largest);
  Words sum[HALVES] = {}, unit[HALVES], was[HALVES];
  Floats scale[HALVES];
  for (int h = 0; h < HALVES; ++h) {
    copy_row(c, row, h, &was[h], [](void* lanes, void* words) { std::memcpy(words, lanes, sizeof(Words) / 2); });
    Words e = was[h] >> 23 & 255, some = (was[h] & 0x7FFFFFFF) != 0;
    Words most = __builtin_convertvector(of_products[h], Words);
    Words of_c = some ? (e ? e : Words{} + 1) - 127 : Words{} + NO_EXPONENT;
    most = of_c > most ? of_c : most;
    Words refused = (e == 255) | (some & (most < LEAST_EXPONENT));
    if (any(refused)) return false;
    unit[h] = most < LEAST_EXPONENT ? Words{} + LEAST_EXPONENT : most;
    scale[h] = (Floats)((127 + precision.fraction - unit[h]) << 23);
  }
  for (int k = 0; k < depth; ++k)
    for (int h = 0; h < HALVES; ++h) {
      Floats product = *reinterpret_cast<const Floats*>(b.value[k] + 8 * h) * a.value[k][line] * scale[h];
      sum[h] += __builtin_convertvector(product, Words);
    }
  for (int h = 0; h < HALVES; ++h) {
    Words start = __builtin_convertvector((Floats)(was[h]) * scale[h], Words);
    Words total = (Words)((Bits32)(sum[h]) + (Bits32)(start));
    if (any(((sum[h] ^ total) & (start ^ total)) < 0)) return false;
    sum[h] = total;
  }
  for (int h = 0; h < HALVES; ++h) {
    Words sign = sum[h] >> 31, magnitude = (sum[h] ^ sign) - sign;
    magnitude &= ~(magnitude >> 24);  // without the bit that rounding to 24 bits would look at
    Words kept = (Words)(__builtin_convertvector(magnitude, Floats)) & precision.keep;
    Floats back = (Floats)((127 - precision.fraction + unit[h]) << 23);
    Words result = (Words)((Floats)(kept) * back) | (sign & static_cast<s32>(0x80000000));
    copy_row(c, row, h, &result, [](void* lanes, void* words) { std::memcpy(lanes, words, sizeof(Words) / 2); });
  }
  return true;
}

u32 multiply_block(const Block& a, int rows, const Block& b, int columns, int depth, const Precision& precision, Fragment c) {
  u32 refused = 0;
  for (int row = 0; row < rows; ++row) {
    bool done = columns > 8 ? row_by_block<2>(a, row, b, depth, precision, c)
                            : row_by_block<1>(a, row, b, depth, precision, c);
    refused |= static_cast<u32>(!done) << row;
  }
  return refused;
}

}  // namespace SIM_PATH
}  // namespace sim
