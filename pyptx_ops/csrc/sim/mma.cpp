// mma.sync: a multiplication by one warp, from registers to registers; and movmatrix.
//
// All shapes have one layout: lane l holds, of A, the rows l/4 and the one eight below, of B the column l/4, and of each
// word along K those of its place l%4 in groups of four; of C and D the columns 2(l%4) and the next.
#include <cmath>
#include <cstring>

#include "machine.h"
#include "registers.h"
#include "numbers.h"
#include "tensor_core.h"

namespace sim {
namespace {

enum : int { ARG_D, ARG_A, ARG_B, ARG_C };

constexpr int ROW_WORDS = TILE_BYTES / 4, COLUMNS = 8, MAX_REGISTERS = 8, MAX_DEPTH = 16;

bool is_byte_float(Type type) { return type == Type::e4m3 || type == Type::e5m2; }

u32 half_of(u8 bits, Type type) {
  return static_cast<u32>(packed(number_of(bits, type == Type::e4m3 ? E4M3 : E5M2), F16, Word::rn));
}

// 8-bit floats are multiplied as f16, on Hopper: first the lower two bytes of every word, starting from zero, then the
// upper two, and C is added to that.
void multiply_halves(Tile tile, const u32* a, const u32* b, u32* sums) {
  static thread_local u32 products[TILE_ROWS * TILE_COLUMNS];
  std::memset(products, 0, sizeof products);
  Type types[2] = {tile.a, tile.b};
  tile.a = tile.b = Type::f16;
  tile.depth /= 2;
  for (int upper : {0, 16}) {
    u32 halves_a[TILE_ROWS * ROW_WORDS], halves_b[COLUMNS * ROW_WORDS];
    auto widen = [&](const u32* words, int count, Type type, u32* halves) {
      for (int i = 0; i < count; ++i)
        halves[i] = half_of(static_cast<u8>(words[i] >> upper), type) |
                    half_of(static_cast<u8>(words[i] >> (upper + 8)), type) << 16;
    };
    widen(a, TILE_ROWS * ROW_WORDS, types[0], halves_a);
    widen(b, COLUMNS * ROW_WORDS, types[1], halves_b);
    multiply(tile, reinterpret_cast<const u8*>(halves_a), reinterpret_cast<const u8*>(halves_b), products);
  }
  for (int row = 0; row < tile.rows; ++row)
    for (int column = 0; column < COLUMNS; ++column) {
      u32 &c = sums[row * TILE_COLUMNS + column], product = products[row * TILE_COLUMNS + column];
      c = tile.d == Type::f16
              ? f16_bits(f16_of(static_cast<u16>(c)) + f16_of(static_cast<u16>(product)))
              : f32_bits(f32_of(c) + f32_of(product));
    }
}

}  // namespace

void Machine::mma_sync(Warp& warp, const Ins& ins) {
  if (ins.type == Type::f64) return mma_double(warp, ins);
  bool half = ins.type == Type::f16;
  u32 a[TILE_ROWS * ROW_WORDS] = {}, b[COLUMNS * ROW_WORDS] = {};
  static thread_local u32 sums[TILE_ROWS * TILE_COLUMNS];
  for (int g = 0; g < ins.size(ARG_A); ++g) {
    const u32* lanes = read<u32>(warp, ins.arg(ARG_A, g), ALL);
    for (int l = 0; l < LANES; ++l) a[(l / 4 + 8 * (g & 1)) * ROW_WORDS + l % 4 + 4 * (g >> 1)] = lanes[l];
  }
  for (int g = 0; g < ins.size(ARG_B); ++g) {
    const u32* lanes = read<u32>(warp, ins.arg(ARG_B, g), ALL);
    for (int l = 0; l < LANES; ++l) b[l / 4 * ROW_WORDS + l % 4 + 4 * g] = lanes[l];
  }
  // An element of C or D: two neighbours share a register of f16.
  auto place = [&](int i, int l, int e) -> u32& {
    int row = half ? l / 4 + 8 * i : l / 4 + 8 * (i >> 1), column = 2 * (l % 4) + (half ? e : i & 1);
    return sums[row * TILE_COLUMNS + column];
  };
  for (int i = 0; i < ins.size(ARG_C); ++i) {
    const u32* lanes = read<u32>(warp, ins.arg(ARG_C, i), ALL);
    for (int l = 0; l < LANES; ++l)
      for (int e = 0; e < (half ? 2 : 1); ++e) place(i, l, e) = half ? lanes[l] >> (16 * e) & 0xFFFF : lanes[l];
  }
  Tile tile{ins.src, ins.src_b, ins.type, ins.m, COLUMNS, ins.k};
  tile.saturate = ins.flags & SATFINITE;
  tile.exclusive = ins.mode == Word::xor_;
  if (is_byte_float(ins.src))
    multiply_halves(tile, a, b, sums);
  else
    multiply(tile, reinterpret_cast<const u8*>(a), reinterpret_cast<const u8*>(b), sums);
  for (int i = 0; i < ins.size(ARG_D); ++i) {
    u32 out[LANES];
    for (int l = 0; l < LANES; ++l) out[l] = half ? place(i, l, 0) | place(i, l, 1) << 16 : place(i, l, 0);
    write<u32>(warp, ins.arg(ARG_D, i), out, ALL);
  }
}

// One fused multiplication and addition after the other, in the order of K.
void Machine::mma_double(Warp& warp, const Ins& ins) {
  double a[TILE_ROWS][MAX_DEPTH], b[MAX_DEPTH][COLUMNS];
  auto value = [](u64 bits) {
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  };
  for (int g = 0; g < ins.size(ARG_A); ++g) {
    const u64* lanes = read<u64>(warp, ins.arg(ARG_A, g), ALL);
    bool tall = ins.m == TILE_ROWS;
    for (int l = 0; l < LANES; ++l)
      a[l / 4 + (tall ? 8 * (g & 1) : 0)][l % 4 + 4 * (tall ? g >> 1 : g)] = value(lanes[l]);
  }
  for (int g = 0; g < ins.size(ARG_B); ++g) {
    const u64* lanes = read<u64>(warp, ins.arg(ARG_B, g), ALL);
    for (int l = 0; l < LANES; ++l) b[l % 4 + 4 * g][l / 4] = value(lanes[l]);
  }
  u64 out[MAX_REGISTERS][LANES];
  for (int i = 0; i < ins.size(ARG_C); ++i) {
    const u64* lanes = read<u64>(warp, ins.arg(ARG_C, i), ALL);
    for (int l = 0; l < LANES; ++l) {
      double sum = value(lanes[l]);
      for (int k = 0; k < ins.k; ++k) sum = std::fma(a[l / 4 + 8 * (i >> 1)][k], b[k][2 * (l % 4) + (i & 1)], sum);
      if (sum != sum) sum = value(0x7FFFFFFFFFFFFFFFull);
      std::memcpy(&out[i][l], &sum, sizeof sum);
    }
  }
  for (int i = 0; i < ins.size(ARG_D); ++i) write<u64>(warp, ins.arg(ARG_D, i), out[i], ALL);
}

// The transpose of an 8x8 matrix of 16-bit elements: lane l holds elements 2(l%4) and the next of row l/4.
void Machine::move_matrix(Warp& warp, const Ins& ins) {
  const u32* in = read<u32>(warp, ins.arg(1), ALL);
  u32 out[LANES] = {};
  for (int l = 0; l < LANES; ++l)
    for (int half = 0; half < 2; ++half) {
      int row = 2 * (l % 4) + half, column = l / 4;
      out[l] |= (in[4 * row + column / 2] >> (16 * (column & 1)) & 0xFFFF) << (16 * half);
    }
  write<u32>(warp, ins.arg(0), out, ALL);
}

bool Machine::warp_matrix(Warp& warp, const Ins& ins, u32 mask) {
  if (ins.op != Op::mma_sync && ins.op != Op::movmatrix) return false;
  if (mask != ALL) throw Problem("warp divergence", "a matrix instruction by part of a warp");
  if (ins.op == Op::mma_sync)
    mma_sync(warp, ins);
  else
    move_matrix(warp, ins);
  return true;
}

}  // namespace sim
