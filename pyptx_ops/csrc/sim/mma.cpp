// mma.sync: a multiplication by one warp, from registers to registers; and movmatrix.
//
// All shapes have one layout: lane l holds, of A, the rows l/4 and the one eight below, of B the column l/4, and of each
// word along K those of its place l%4 in groups of four; of C and D the columns 2(l%4) and the next.
#include <cmath>
#include <cstring>

#include "machine.h"
#include "numbers.h"
#include "registers.h"
#include "tensor_core.h"

namespace sim {
namespace {

enum : int { ARG_D, ARG_A, ARG_B, ARG_C };

constexpr int ROW_WORDS = TILE_BYTES / 4, COLUMNS = 8, MAX_REGISTERS = 8, MAX_DEPTH = 16;

bool is_byte_float(Type type) { return type == Type::e4m3 || type == Type::e5m2; }

u16 half_of(u8 bits, Type type) {
  return static_cast<u16>(packed(number_of(bits, type == Type::e4m3 ? E4M3 : E5M2), F16, Word::rn));
}

float half_value(u32 bits) { return f16_of(static_cast<u16>(bits)); }

// 8-bit floats are multiplied as f16, on Hopper: first the lower two bytes of every word, starting from zero, then the
// upper two, and C is added to that.
void multiply_halves(const Tile& tile, const u8* a, const u8* b, Fragment sums) {
  u32 storage[MAX_REGISTERS][LANES] = {}, *registers[MAX_REGISTERS];
  for (int i = 0; i < MAX_REGISTERS; ++i) registers[i] = storage[i];
  Fragment products{registers, sums.halves};
  Tile halves = tile;
  halves.a = halves.b = Type::f16;
  halves.depth /= 2;
  auto widen = [](const u8* bytes, int count, Type type, u16* out) {
    for (int i = 0; i < count; ++i) out[i] = half_of(bytes[4 * (i / 2) + i % 2], type);
  };
  for (int upper : {0, 2}) {
    alignas(4) u16 halves_a[2 * TILE_ROWS * ROW_WORDS], halves_b[2 * COLUMNS * ROW_WORDS];
    widen(a + upper, 2 * TILE_ROWS * ROW_WORDS, tile.a, halves_a);
    widen(b + upper, 2 * COLUMNS * ROW_WORDS, tile.b, halves_b);
    multiply(halves, reinterpret_cast<const u8*>(halves_a), reinterpret_cast<const u8*>(halves_b), products);
  }
  for (u32 row = 0; row < TILE_ROWS; ++row)
    for (u32 column = 0; column < COLUMNS; ++column) {
      u32 c = sums.get(row, column), product = products.get(row, column);
      sums.set(row, column, sums.halves ? f16_bits(half_value(c) + half_value(product))
                                        : f32_bits(f32_of(c) + f32_of(product)));
    }
}

}  // namespace

void Machine::mma_sync(Warp& warp, const Ins& ins) {
  if (ins.type == Type::f64) return mma_double(warp, ins);
  u32 a[TILE_ROWS * ROW_WORDS] = {}, b[COLUMNS * ROW_WORDS] = {};
  for (int g = 0; g < ins.size(ARG_A); ++g) {
    const u32* lanes = read<u32>(warp, ins.arg(ARG_A, g), ALL);
    for (int l = 0; l < LANES; ++l) a[(l / 4 + 8 * (g & 1)) * ROW_WORDS + l % 4 + 4 * (g >> 1)] = lanes[l];
  }
  for (int g = 0; g < ins.size(ARG_B); ++g) {
    const u32* lanes = read<u32>(warp, ins.arg(ARG_B, g), ALL);
    for (int l = 0; l < LANES; ++l) b[l / 4 * ROW_WORDS + l % 4 + 4 * g] = lanes[l];
  }
  u32 sums[MAX_REGISTERS][LANES], *registers[MAX_REGISTERS];
  for (int i = 0; i < ins.size(ARG_C); ++i) {
    std::memcpy(sums[i], read<u32>(warp, ins.arg(ARG_C, i), ALL), sizeof sums[i]);
    registers[i] = sums[i];
  }
  Tile tile{ins.src, ins.src_b, ins.type, ins.m, COLUMNS, ins.k};
  tile.saturate = ins.flags & SATFINITE;
  tile.exclusive = ins.mode == Word::xor_;
  auto* product = is_byte_float(ins.src) ? multiply_halves : multiply;
  product(tile, reinterpret_cast<const u8*>(a), reinterpret_cast<const u8*>(b), {registers, ins.type == Type::f16});
  for (int i = 0; i < ins.size(ARG_D); ++i) write<u32>(warp, ins.arg(ARG_D, i), sums[i], ALL);
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

bool Machine::warp_matrix(Warp& warp, const Ins& ins) {
  if (ins.op != Op::mma_sync && ins.op != Op::movmatrix) return false;
  if (ins.op == Op::mma_sync)
    mma_sync(warp, ins);
  else
    move_matrix(warp, ins);
  return true;
}

}  // namespace sim
