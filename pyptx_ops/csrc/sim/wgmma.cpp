// wgmma: an asynchronous multiplication of 64 rows by a warpgroup; each warp's 16 rows are one operation here.
#include <cstring>

#include "machine.h"
#include "registers.h"
#include "tensor_core.h"

namespace sim {
namespace {

constexpr u32 UNIT = 16;  // bytes that are fetched at once

}  // namespace

MatrixLayout::MatrixLayout(u64 descriptor, bool mn_major) : mn_major(mn_major) {
  auto field = [&](int shift) { return static_cast<u32>(descriptor >> shift & 0x3FFF) << 4; };
  start = field(0), lbo = field(16), sbo = field(32);
  u32 mode = static_cast<u32>(descriptor >> 62);
  if (descriptor >> 49 & 7) throw Problem("unsupported", "a matrix descriptor with a base offset");
  span = mode == 0 ? 16 : mode == 1 ? 128 : mode == 2 ? 64 : 32;
}

// K-major: `row` counts rows, `k` the 16-byte units along K. MN-major: `row` counts units of 8 rows, `k` single ones.
u32 MatrixLayout::address(u32 row, u32 k) const {
  u32 offset;
  if (!mn_major)
    offset = span == UNIT ? row % 8 * UNIT + row / 8 * sbo + k * lbo : row % 8 * span + row / 8 * sbo + k * UNIT;
  else if (span == UNIT)
    offset = row * sbo + k % 8 * UNIT + k / 8 * lbo;
  else
    offset = row % (span / UNIT) * UNIT + row / (span / UNIT) * lbo + k % 8 * span + k / 8 * sbo;
  u32 address = start + offset;
  return address ^ (address >> 7 & (span / UNIT - 1)) << 4;
}

// One unit of an operand, which this wgmma is known to have read from then on.
const u8* Machine::fetch_unit(const Warp& warp, const Wgmma& op, u32 address, const char* operand, u32 row, u32 k) {
  Cta& cta = *warp.cta;
  u32 start = address - SHARED_BASE;
  try {
    if (!calm(cta, op, address)) {
      shared(cta, address, UNIT, false);
      observe_fetch(warp, cta, op, address, UNIT);
    }
    cta.fetches[start / UNIT * cta.warps.size() + static_cast<u32>(warp.index)] = op.number;
    return cta.data.data() + start;
  } catch (Problem& problem) {
    Problem placed(problem.kind, std::string("wgmma reads ") + operand + " (row " + std::to_string(row) + ", k " +
                                     std::to_string(k) + "): " + problem.what());
    placed.others = problem.others;
    placed.line = op.ins->line;  // also where it is carried out at a wait
    placed.where = place_of(warp);
    throw placed;
  }
}

// Rows `first` … of an operand, TILE_BYTES of each, and where the tile came from.
Fetched Machine::fetch(const Warp& warp, const Wgmma& op, u64 descriptor, bool mn_major, int first, int rows, u8* out,
                       const char* operand) {
  MatrixLayout layout(descriptor, mn_major);
  Cta& cta = *warp.cta;
  if (cta.fetches.empty()) cta.fetches.assign((cta.data.size() / UNIT + 1) * cta.warps.size(), 0);
  u32 unit = mn_major ? 8 : 1, steps = mn_major ? TILE_BYTES / 2 : TILE_BYTES / UNIT;
  u32 elements = mn_major ? 1 : static_cast<u32>(8 * UNIT / bits_of(op.ins->src));  // along K, of a unit
  TileCheck check(tiles_, operand, unit, elements);
  for (u32 r = 0; r < static_cast<u32>(rows) / unit; ++r)
    for (u32 k = 0; k < steps; ++k) {
      u32 row = static_cast<u32>(first) / unit + r, address = layout.address(row, k);
      const u8* source = fetch_unit(warp, op, address, operand, row * unit, k * elements);
      check.visit(row, k, cta.origin[(address - SHARED_BASE) / UNIT]);
      if (!mn_major)
        std::memcpy(out + r * TILE_BYTES + k * UNIT, source, UNIT);
      else
        for (u32 i = 0; i < 8; ++i) std::memcpy(out + (8 * r + i) * TILE_BYTES + 2 * k, source + 2 * i, 2);
    }
  return check.finish();
}

void Machine::carry_out_wgmma(Warp& warp) {
  Wgmma op = std::move(warp.queue.front());
  warp.queue.pop_front();
  WgmmaGroup* group = nullptr;
  for (WgmmaGroup& candidate : warp.wgmma_groups)
    if (candidate.left) {
      group = &candidate;
      --candidate.left;
      break;
    }
  const Ins& ins = *op.ins;
  bool in_registers = !op.a_registers.empty();
  int n = ins.n;
  u8 a[TILE_ROWS * TILE_BYTES], b[TILE_COLUMNS * TILE_BYTES];
  Fetched from_a, from_b;
  if (in_registers) {
    for (int l = 0; l < LANES; ++l)
      for (int g = 0; g < 4; ++g)
        std::memcpy(a + (l / 4 + 8 * (g & 1)) * TILE_BYTES + 4 * (l % 4) + 16 * (g >> 1),
                    &op.a_registers[static_cast<size_t>(4 * l + g)], 4);
  } else {
    from_a = fetch(warp, op, op.a, ins.arg(WGMMA_TRANS_A).value != 0, TILE_ROWS * (warp.index % 4), TILE_ROWS, a, "A");
  }
  from_b = fetch(warp, op, op.b, ins.arg(WGMMA_TRANS_B).value != 0, 0, n, b, "B");
  if (group) check_steps(*group, from_a, from_b);
  Tile tile{ins.src, ins.src_b, ins.type, TILE_ROWS, n, 8 * TILE_BYTES / bits_of(ins.src)};
  tile.negate_a = ins.arg(WGMMA_SCALE_A).value < 0;
  tile.negate_b = ins.arg(WGMMA_SCALE_B).value < 0;
  tile.saturate = ins.flags & SATFINITE;
  u32* registers[TILE_COLUMNS / 2];
  for (int i = 0; i < ins.size(WGMMA_D); ++i) {
    registers[i] = reinterpret_cast<u32*>(warp.file.data() + program_.slots[ins.arg(WGMMA_D, i).slot].offset);
    if (!op.accumulate) std::memset(registers[i], 0, LANES * sizeof(u32));
  }
  multiply(tile, a, b, {registers, ins.type == Type::f16});
}

void Machine::issue_wgmma(Warp& warp, const Ins& ins, u32 mask) {
  bool in_registers = ins.size(WGMMA_A) > 1, accumulate = (read_pred(warp, ins.arg(WGMMA_SCALE_D), mask) & 1) != 0;
  Wgmma op{&ins, 0, 0, accumulate, {}, snapshot(warp), warp.clock, static_cast<u32>(warp.wgmmas) + 1, {}};
  auto descriptor = [&](const Operand& operand) {
    const u64* lanes = read<u64>(warp, operand, mask);
    for (int l = 1; l < LANES; ++l)
      if (lanes[l] != lanes[0]) throw Problem("not uniform", "a matrix descriptor differs between lanes");
    return lanes[0];
  };
  own_sums(warp, ins, accumulate);
  if (in_registers)
    op.a_registers = read_fragments(warp, ins);
  else
    op.a = descriptor(ins.arg(WGMMA_A));
  op.b = descriptor(ins.arg(WGMMA_B));
  auto& log = warp.cta->wgmma_log[warp.index / 4];
  std::array<u64, 3> entry{static_cast<u64>(ins.line), op.a, op.b};
  if (warp.wgmmas < log.size() && log[warp.wgmmas] != entry)
    throw Problem("warpgroup divergence", "the warps of a warpgroup issue different wgmmas or descriptors");
  if (warp.wgmmas == log.size()) log.push_back(entry);
  ++warp.wgmmas;
  WgmmaGroup& group = warp.wgmma_groups.back();
  ++group.left;
  if (!group.last) group.since = executed, group.line = ins.line;
  group.last = op.number;
  warp.queue.push_back(std::move(op));
  if (settings_.policy == Policy::eager || (settings_.policy == Policy::random && random_() % 2))
    while (!warp.queue.empty()) carry_out_wgmma(warp);
}

void Machine::wait_wgmma(Warp& warp, u32 pending) {
  while (warp.wgmma_groups.size() - 1 > pending) {
    while (warp.wgmma_groups.front().left) carry_out_wgmma(warp);
    let_go(warp, warp.wgmma_groups.front());
    u32 warps = program_.cluster * static_cast<u32>(warp.cta->warps.size());
    warp.now.reach(warps + warp.actor, warp.wgmma_groups.front().last);
    warp.shot.reset();
    if (settings_.trace) trace_wgmmas(warp, warp.wgmma_groups.front());
    warp.wgmma_groups.pop_front();
  }
}

bool Machine::matrix_multiply(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  switch (ins.op) {
    case Op::wgmma: issue_wgmma(warp, ins, mask); break;
    case Op::wgmma_fence: hide_fragments(warp); break;
    case Op::wgmma_commit: warp.wgmma_groups.emplace_back(); break;
    case Op::wgmma_wait: wait_wgmma(warp, static_cast<u32>(ins.arg(0).value)); break;
    default: return false;
  }
  ++group.pc;
  return true;
}

}  // namespace sim
