// mma.sync: a multiplication by one warp, from registers to registers; and movmatrix.
//
// All shapes have one layout: lane l holds, of A, the rows l/4 and the one eight below, of B the column l/4, and of each
// word along K those of its place l%4 in groups of four; of C and D the columns 2(l%4) and the next.
#include <cmath>
#include <cstring>

#include "machine.h"
#include "registers.h"
#include "tensor_core.h"

namespace sim {
namespace {

enum : int { ARG_D, ARG_A, ARG_B, ARG_C };

constexpr int ROW_WORDS = TILE_BYTES / 4, COLUMNS = 8, MAX_REGISTERS = 8, MAX_DEPTH = 16;

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
  multiply(tile, reinterpret_cast<const u8*>(a), reinterpret_cast<const u8*>(b), {registers, ins.type == Type::f16});
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
