// wgmma: an asynchronous multiplication of 64 rows by a warpgroup; each warp's 16 rows are one operation here.
//
// The arithmetic is that of Hopper's tensor cores: the 16 exact products and C are aligned to the largest exponent,
// truncated at 25 fractional bits, added, and rounded toward zero.
#include <cstring>

#include "machine.h"
#include "numbers.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SIM_VECTORISED __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define SIM_VECTORISED
#endif

namespace sim {
namespace {

constexpr int ROWS = 16, DEPTH = 16, MAX_N = 256, FRACTION = 25;
constexpr s32 NO_EXPONENT = -10000;

struct Format {
  int exponent_bits, mantissa_bits, bias;
};

// value = significand * 2^(exponent - mantissa_bits)
inline bool decode(u32 bits, Format f, s32& significand, s32& exponent) {
  s32 mantissa = static_cast<s32>(bits & ((1u << f.mantissa_bits) - 1));
  s32 e = static_cast<s32>(bits >> f.mantissa_bits & ((1u << f.exponent_bits) - 1));
  s32 magnitude = e ? mantissa | 1 << f.mantissa_bits : mantissa;
  significand = bits >> (f.exponent_bits + f.mantissa_bits) & 1 ? -magnitude : magnitude;
  exponent = magnitude ? (e ? e : 1) - f.bias : NO_EXPONENT;
  return e == (1 << f.exponent_bits) - 1;  // infinity or NaN
}

// One row of A (significand, exponent) times B: for each column the aligned sum of products, without C.
SIM_VECTORISED void dot(int n, int fraction_of_product, const s32* as, const s32* ae, const s32* bs, const s32* be,
                        s32* largest, s32* sum) {
  for (int k = 0; k < DEPTH; ++k) {
    const s32* e = be + k * MAX_N;
    for (int j = 0; j < n; ++j) {
      s32 product = ae[k] + e[j];
      largest[j] = product > largest[j] ? product : largest[j];
    }
  }
  for (int j = 0; j < n; ++j) sum[j] = 0;
  int left = FRACTION - fraction_of_product;
  for (int k = 0; k < DEPTH; ++k) {
    const s32 *s = bs + k * MAX_N, *e = be + k * MAX_N;
    for (int j = 0; j < n; ++j) {
      s32 product = as[k] * s[j], magnitude = product < 0 ? -product : product;
      s32 shift = largest[j] - ae[k] - e[j];
      shift = shift > 31 ? 31 : shift;
      s32 aligned = static_cast<s32>(static_cast<u32>(magnitude << left) >> static_cast<u32>(shift));
      sum[j] += product < 0 ? -aligned : aligned;
    }
  }
}

// total * 2^(exponent - FRACTION), rounded toward zero.
float rounded(s64 total, s32 exponent) {
  if (total == 0) return 0.0f;
  u64 magnitude = static_cast<u64>(total < 0 ? -total : total);
  int lead = 63 - __builtin_clzll(magnitude);
  s32 e = exponent - FRACTION + lead;
  if (e < -126) {
    int drop = -126 - 23 - (exponent - FRACTION);
    u64 kept = drop > 62 ? 0 : drop >= 0 ? magnitude >> drop : magnitude << -drop;
    float value = std::ldexp(static_cast<float>(kept), -149);
    return total < 0 ? -value : value;
  }
  if (e > 127) return total < 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  u32 mantissa = static_cast<u32>(lead >= 23 ? magnitude >> (lead - 23) : magnitude << (23 - lead)) & 0x7FFFFF;
  return f32_of((total < 0 ? 0x80000000u : 0) | static_cast<u32>(e + 127) << 23 | mantissa);
}

float special(const float* a, const float* b, float c) {  // with an infinity or NaN among them
  float sum = c;
  for (int k = 0; k < DEPTH; ++k) sum += a[k] * b[k];
  return sum != sum ? f32_of(CANONICAL_NAN) : sum;
}

}  // namespace

// Rows `first` … of an operand tile of 16 columns along K, as out[row][k].
void Machine::fetch(const Warp& warp, const Wgmma& op, u64 descriptor, bool mn_major, int first, int rows, u16* out,
                    const char* operand) {
  Cta& cta = *warp.cta;
  auto field = [&](int shift) { return static_cast<u32>(descriptor >> shift & 0x3FFF) << 4; };
  u32 start = field(0), lbo = field(16), sbo = field(32), mode = static_cast<u32>(descriptor >> 62);
  if (descriptor >> 49 & 7) throw Problem("unsupported", "a matrix descriptor with a base offset");
  u32 span = mode == 0 ? 16 : mode == 1 ? 128 : mode == 2 ? 64 : 32, xor_rows = mode == 0 ? 0 : span / 16 - 1;
  auto chunk = [&](u32 offset) {
    u32 address = start + offset;
    address ^= (address >> 7 & xor_rows) << 4;
    return address;
  };
  auto bytes = [&](u32 address, int mn, int k) -> const u8* {
    try {
      const u8* place = shared(cta, address, 16, false);
      observe_fetch(warp, cta, op, address, 16);
      return place;
    } catch (Problem& problem) {
      Problem placed(problem.kind, std::string("wgmma reads ") + operand + " (row " + std::to_string(mn) + ", k " +
                                       std::to_string(k) + "): " + problem.what());
      placed.others = problem.others;
      placed.others.emplace_back(op.ins->line, "the wgmma");
      throw placed;
    }
  };
  if (!mn_major) {
    for (int r = 0; r < rows; ++r) {
      u32 mn = static_cast<u32>(first + r);
      for (u32 half = 0; half < 2; ++half) {
        u32 offset = mode == 0 ? mn % 8 * 16 + mn / 8 * sbo + half * lbo : mn % 8 * span + mn / 8 * sbo + half * 16;
        std::memcpy(out + r * DEPTH + 8 * half, bytes(chunk(offset), static_cast<int>(mn), static_cast<int>(8 * half)),
                    16);
      }
    }
    return;
  }
  for (int r = 0; r < rows; r += 8) {
    u32 mn = static_cast<u32>(first + r), unit = span / 2;
    for (u32 k = 0; k < DEPTH; ++k) {
      u32 offset = mode == 0 ? mn / 8 * sbo + k % 8 * 16 + k / 8 * lbo
                             : mn % unit * 2 + mn / unit * lbo + k % 8 * span + k / 8 * sbo;
      u16 line[8];
      std::memcpy(line, bytes(chunk(offset), static_cast<int>(mn), static_cast<int>(k)), 16);
      for (int i = 0; i < 8; ++i) out[(r + i) * DEPTH + static_cast<int>(k)] = line[i];
    }
  }
}

void Machine::carry_out_wgmma(Warp& warp) {
  Wgmma op = std::move(warp.queue.front());
  warp.queue.pop_front();
  for (WgmmaGroup& group : warp.wgmma_groups)
    if (group.left) {
      --group.left;
      break;
    }
  const Ins& ins = *op.ins;
  bool in_registers = !op.a_registers.empty();
  int n = ins.n, scale = ins.args() > 3 ? 4 : 0;
  Format format = ins.src == Type::bf16 ? Format{8, 7, 127} : Format{5, 10, 15};
  u16 a[ROWS * DEPTH], b[MAX_N * DEPTH];
  if (in_registers) {
    for (int l = 0; l < LANES; ++l)
      for (int g = 0; g < 4; ++g)
        for (int e = 0; e < 2; ++e)
          a[(l / 4 + 8 * (g & 1)) * DEPTH + 2 * (l % 4) + e + 8 * (g >> 1)] =
              static_cast<u16>(op.a_registers[static_cast<size_t>(4 * l + g)] >> (16 * e));
  } else {
    fetch(warp, op, op.a, ins.arg(6).value != 0, ROWS * (warp.index % 4), ROWS, a, "A");
  }
  fetch(warp, op, op.b, ins.arg(in_registers ? 6 : 7).value != 0, 0, n, b, "B");
  u16 sign_a = ins.arg(scale).value < 0 ? 0x8000 : 0, sign_b = ins.arg(scale + 1).value < 0 ? 0x8000 : 0;
  static thread_local s32 bs[DEPTH * MAX_N], be[DEPTH * MAX_N];
  bool odd_b[MAX_N];
  for (int j = 0; j < n; ++j) {
    odd_b[j] = false;
    for (int k = 0; k < DEPTH; ++k)
      odd_b[j] |= decode(b[j * DEPTH + k] ^ sign_b, format, bs[k * MAX_N + j], be[k * MAX_N + j]);
  }
  auto real = [&](u16 bits) { return ins.src == Type::bf16 ? bf16_of(bits) : f16_of(bits); };
  std::vector<u32*> registers;
  for (int i = 0; i < n / 2; ++i)
    registers.push_back(reinterpret_cast<u32*>(warp.file.data() + program_.slots[ins.arg(0, i).slot].offset));
  for (int row = 0; row < ROWS; ++row) {
    s32 as[DEPTH], ae[DEPTH], largest[MAX_N], sum[MAX_N], cs[MAX_N], ce[MAX_N];
    bool odd_a = false, odd_c[MAX_N];
    for (int k = 0; k < DEPTH; ++k) odd_a |= decode(a[row * DEPTH + k] ^ sign_a, format, as[k], ae[k]);
    auto element = [&](int j) -> u32& {  // the fragment's register and lane of (row, j)
      return registers[static_cast<size_t>(4 * (j / 8) + 2 * (row / 8) + (j & 1))][4 * (row % 8) + j % 8 / 2];
    };
    for (int j = 0; j < n; ++j) {
      odd_c[j] = op.accumulate && decode(element(j), Format{8, 23, 127}, cs[j], ce[j]);
      if (!op.accumulate) cs[j] = 0, ce[j] = NO_EXPONENT;
      largest[j] = ce[j];
    }
    dot(n, 2 * format.mantissa_bits, as, ae, bs, be, largest, sum);
    for (int j = 0; j < n; ++j) {
      if (odd_a || odd_b[j] || odd_c[j]) {
        float x[DEPTH], y[DEPTH];
        for (int k = 0; k < DEPTH; ++k)
          x[k] = real(a[row * DEPTH + k] ^ sign_a), y[k] = real(b[j * DEPTH + k] ^ sign_b);
        element(j) = f32_bits(special(x, y, op.accumulate ? f32_of(element(j)) : 0.0f));
        continue;
      }
      s64 total = sum[j];
      if (cs[j]) {
        s32 shift = largest[j] - ce[j];
        s64 c = static_cast<s64>(cs[j] < 0 ? -cs[j] : cs[j]) << (FRACTION - 23) >> (shift > 62 ? 62 : shift);
        total += cs[j] < 0 ? -c : c;
      }
      element(j) = bits_to<u32>(rounded(total, largest[j]));
    }
  }
}

void Machine::issue_wgmma(Warp& warp, const Ins& ins, u32 mask) {
  if (mask != ALL) throw Problem("warp divergence", "wgmma by part of a warp");
  if ((ins.src != Type::bf16 && ins.src != Type::f16) || ins.type != Type::f32)
    throw Problem("unsupported", "wgmma is modelled for bf16 and f16 with f32 accumulators");
  bool in_registers = ins.size(1) > 1, accumulate = (read_pred(warp, ins.arg(3), mask) & 1) != 0;
  for (int i = 0; i < ins.size(0); ++i) {
    int slot = ins.arg(0, i).slot;
    if (!warp.fenced || (!warp.busy[slot] && warp.touched[slot] > warp.fenced))
      throw Problem("missing wgmma.fence",
                    program_.slots[slot].name + (warp.fenced ? " was written after the last wgmma.fence"
                                                             : " is used, and there was no wgmma.fence at all"));
    if (accumulate && !warp.busy[slot] && warp.valid[slot] != ALL) unready(warp, slot, false);
  }
  Wgmma op{&ins, 0, 0, accumulate, {}, snapshot(warp), warp.clock, static_cast<u32>(warp.wgmmas) + 1, {}};
  auto descriptor = [&](const Operand& operand) {
    const u64* lanes = read<u64>(warp, operand, mask);
    for (int l = 1; l < LANES; ++l)
      if (lanes[l] != lanes[0]) throw Problem("not uniform", "a matrix descriptor differs between lanes");
    return lanes[0];
  };
  if (in_registers) {
    op.a_registers.resize(4 * LANES);
    for (int g = 0; g < 4; ++g) {
      const u32* lanes = read<u32>(warp, ins.arg(1, g), mask);
      for (int l = 0; l < LANES; ++l) op.a_registers[static_cast<size_t>(4 * l + g)] = lanes[l];
    }
  } else {
    op.a = descriptor(ins.arg(1));
  }
  op.b = descriptor(ins.arg(2));
  auto& log = warp.cta->wgmma_log[warp.index / 4];
  std::array<u64, 3> entry{static_cast<u64>(ins.line), op.a, op.b};
  if (warp.wgmmas < log.size() && log[warp.wgmmas] != entry)
    throw Problem("warpgroup divergence", "the warps of a warpgroup issue different wgmmas or descriptors");
  if (warp.wgmmas == log.size()) log.push_back(entry);
  ++warp.wgmmas;
  WgmmaGroup& group = warp.wgmma_groups.back();
  for (int i = 0; i < ins.size(0); ++i) {
    int slot = ins.arg(0, i).slot;
    group.owned.push_back(slot);
    ++warp.busy[slot];
    warp.valid[slot] = 0;
  }
  ++group.left;
  group.last = op.number;
  warp.queue.push_back(std::move(op));
  if (settings_.policy == Policy::eager || (settings_.policy == Policy::random && random_() % 2))
    while (!warp.queue.empty()) carry_out_wgmma(warp);
}

void Machine::wait_wgmma(Warp& warp, u32 pending) {
  while (warp.wgmma_groups.size() - 1 > pending) {
    while (warp.wgmma_groups.front().left) carry_out_wgmma(warp);
    for (int slot : warp.wgmma_groups.front().owned)
      if (--warp.busy[slot] == 0) warp.valid[slot] = ALL;
    u32 warps = program_.cluster * static_cast<u32>(warp.cta->warps.size());
    warp.now.reach(warps + warp.actor, warp.wgmma_groups.front().last);
    warp.shot.reset();
    warp.wgmma_groups.pop_front();
  }
}

bool Machine::matrix_multiply(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  switch (ins.op) {
    case Op::wgmma: issue_wgmma(warp, ins, mask); break;
    case Op::wgmma_fence: warp.fenced = warp.clock; break;
    case Op::wgmma_commit: warp.wgmma_groups.emplace_back(); break;
    case Op::wgmma_wait: wait_wgmma(warp, static_cast<u32>(ins.arg(0).value)); break;
    default: return false;
  }
  ++group.pc;
  return true;
}

}  // namespace sim
