// Address spaces: conversions between them, questions about them, and hints about caches.
#include <cstring>

#include "machine.h"
#include "registers.h"

namespace sim {

bool Machine::in_constants(u64 address, u64 bytes) const {
  u64 base = program_.memory_base();
  return address >= base && address + bytes <= base + program_.constant_bytes;
}

// The space that a generic address lies in.
Word Machine::space_of(u64 address) const {
  u64 top = address >> 48 << 48;
  if (top == SHARED_SPACE) return Word::shared_cluster;
  if (top == PARAM_SPACE) return Word::param;
  return in_constants(address, 1) ? Word::const_ : Word::global;
}

bool Machine::lies_in(const Warp& warp, u64 address, Word space) const {
  Word found = space_of(address);
  if (space == Word::shared || space == Word::shared_cta)
    return found == Word::shared_cluster && static_cast<u32>(address) / WINDOW == warp.cta->rank;
  return found == space;
}

// Generic addresses of global and constant memory are those of the space itself.
u64 Machine::base_of(Word space) const {
  return space == Word::param ? PARAM_SPACE : is_shared(space) ? SHARED_SPACE : 0;
}

bool Machine::address_space(Warp& warp, const Ins& ins, u32 mask) {
  u64 out[LANES];
  switch (ins.op) {
    case Op::hint:
    case Op::prefetch_tensormap: return true;
    case Op::createpolicy:
      std::memset(out, 0, sizeof out);
      break;
    case Op::discard: {
      const u64* a = read<u64>(warp, ins.arg(0), mask);
      for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) std::memset(locate_byte(warp, ins, a[l] + static_cast<u64>(ins.arg(0).offset), 128, true), 0xCB, 128);
      return true;
    }
    case Op::cvta:
    case Op::cvta_to: {
      u64 base = base_of(ins.space);
      const u64* a = read<u64>(warp, ins.arg(1), mask);
      for (int l = 0; l < LANES; ++l) out[l] = ins.op == Op::cvta ? a[l] | base : a[l] & ~base;
      break;
    }
    case Op::isspacep: {
      const u64* a = read<u64>(warp, ins.arg(1), mask);
      u32 inside = 0;
      for (int l = 0; l < LANES; ++l) inside |= static_cast<u32>(lies_in(warp, a[l], ins.space)) << l;
      write_pred(warp, ins.arg(0), inside, mask);
      return true;
    }
    case Op::mapa: {
      const u64* a = read<u64>(warp, ins.arg(1), mask);
      const u32* rank = read<u32>(warp, ins.arg(2), mask);
      for (int l = 0; l < LANES; ++l) {
        if ((mask >> l & 1) && rank[l] >= program_.cluster)
          throw Problem("out of bounds", "mapa: CTA " + std::to_string(rank[l]) + " of a cluster of " +
                                             std::to_string(program_.cluster));
        out[l] = (a[l] & ~0xFF000000ull) | static_cast<u64>(rank[l]) << 24;
      }
      break;
    }
    case Op::getctarank: {
      const u64* a = read<u64>(warp, ins.arg(1), mask);
      for (int l = 0; l < LANES; ++l) out[l] = a[l] >> 24 & 0xFF;
      break;
    }
    default: return false;
  }
  write<u64>(warp, ins.arg(0), out, mask);
  return true;
}

// Moves of 128 bits, whole or in two or four parts.
void Machine::move_wide(Warp& warp, const Ins& ins, u32 mask) {
  u64 words[4][LANES] = {};  // 32 bits each
  int parts = ins.size(1), width = 4 / parts;
  for (int p = 0; p < parts; ++p) {
    const u64* lanes = read<u64>(warp, ins.arg(1, p), mask);
    for (int l = 0; l < LANES; ++l)
      for (int w = 0; w < width; ++w) words[p * width + w][l] = lanes[l] >> (32 * w) & ALL;
  }
  parts = ins.size(0), width = 4 / parts;
  for (int p = 0; p < parts; ++p) {
    u64 out[LANES];
    for (int l = 0; l < LANES; ++l) out[l] = words[p * width][l] | (width == 2 ? words[p * width + 1][l] << 32 : 0);
    write<u64>(warp, ins.arg(0, p), out, mask);
  }
}

}  // namespace sim
