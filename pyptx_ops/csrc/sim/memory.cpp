// Loads, stores, atomics, and the matrix moves between shared memory and registers.
#include <algorithm>
#include <cstring>

#include "machine.h"
#include "registers.h"

namespace sim {
namespace {

std::string hex(u64 value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

bool all_set(const u8* state, u32 bytes) {
  constexpr u64 SET = 0x0101010101010101ull * static_cast<u64>(Byte::set);
  u64 differ = 0;
  u32 i = 0;
  for (; i + 8 <= bytes; i += 8) {
    u64 eight;
    std::memcpy(&eight, state + i, 8);
    differ |= eight ^ SET;
  }
  for (; i < bytes; ++i) differ |= state[i] ^ static_cast<u64>(Byte::set);
  return !differ;
}

}  // namespace

u8* Machine::global(u64 address, u64 bytes, const char* what) {
  const auto& segments = launch_.segments;
  auto inside = [&](const Segment& s) { return address >= s.base && address + bytes <= s.base + s.size; };
  if (last_segment_ < segments.size() && inside(segments[last_segment_])) return reinterpret_cast<u8*>(address);
  std::string nearest;
  u64 distance = ~0ull;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (inside(segments[i])) {
      last_segment_ = i;
      return reinterpret_cast<u8*>(address);
    }
    u64 end = segments[i].base + segments[i].size;
    u64 away = address < segments[i].base ? segments[i].base - address : address - end + bytes;
    if (away < distance) {
      distance = away;
      nearest = address < segments[i].base ? std::to_string(away) + " bytes before"
                                           : std::to_string(address + bytes - end) + " bytes past the end of";
      nearest += " a tensor of " + std::to_string(segments[i].size) + " bytes";
    }
  }
  throw Problem("out of bounds", std::string(what) + " of " + std::to_string(bytes) + " bytes at " + hex(address) +
                                     (nearest.empty() ? ", and there is no tensor" : ": " + nearest));
}

// Memory that the launch was given without values is written before it is read.
void Machine::check_fresh(u64 address, u64 bytes, bool reads, bool writes) {
  for (Fresh& fresh : launch_.fresh) {
    const Segment& where = fresh.where;
    if (address + bytes <= where.base || address >= where.base + where.size) continue;
    u64 first = std::max(address, where.base) - where.base;
    u64 last = std::min(address + bytes, where.base + where.size) - where.base;
    for (u64 i = first; i < last && reads; ++i)
      if (!fresh.written[i])
        throw Problem("uninitialised global memory", place_name(where.base + i, nullptr) + " is read before it was written");
    if (writes) std::memset(fresh.written.data() + first, 1, last - first);
  }
}

Cta& Machine::cta_of(Warp& warp, u32 address, bool own, u32* offset) {
  u32 rank = address / WINDOW;
  *offset = address % WINDOW;
  Cluster& cluster = *warp.cta->cluster;
  if (rank >= cluster.ctas.size())
    throw Problem("out of bounds", "shared address " + hex(address) + " belongs to no CTA of the cluster");
  if (own && rank != warp.cta->rank)
    throw Problem("out of bounds", "shared::cta address " + hex(address) + " belongs to CTA " + std::to_string(rank) +
                                       " of the cluster");
  check_runs(warp, cluster.ctas[rank]);
  return cluster.ctas[rank];
}

// Another CTA's shared memory exists from when the warp knows that it runs until it exits.
void Machine::check_runs(const Warp& warp, const Cta& cta) const {
  if (&cta == warp.cta) return;
  std::string place = "shared memory of CTA " + std::to_string(cta.rank) + " is accessed ";
  if (cta.alive() == 0) throw Problem("exited CTA", place + "after that CTA has exited");
  for (const Warp& other : cta.warps)
    if (warp.now.seen_of(other.actor)) return;
  throw Problem("CTA not started", place + "before anything, such as a cluster barrier, has told that this CTA runs");
}

void Machine::check_state(const Cta& cta, u32 start, u32 bytes, bool write) const {
  for (u32 i = start; i < start + bytes; ++i) {
    Byte state = static_cast<Byte>(cta.state[i]);
    if (state == Byte::set || (state == Byte::unset && write)) continue;
    std::string place = "shared memory offset " + std::to_string(i);
    if (state == Byte::barrier) throw Problem("barrier misuse", place + " holds an mbarrier and is accessed as data");
    if (state == Byte::in_flight)
      throw Problem("copy in flight", place + " is " + (write ? "written" : "read") +
                                          " while an asynchronous copy that was not waited for writes it");
    throw Problem("uninitialised shared memory", place + " is read before it was written");
  }
}

u8* Machine::shared(Cta& cta, u32 offset, u32 bytes, bool write) {
  u32 start = offset - SHARED_BASE;
  if (offset < SHARED_BASE || start + bytes > cta.data.size())
    throw Problem("out of bounds", "shared memory offset " + std::to_string(static_cast<s64>(offset) - SHARED_BASE) +
                                       " (" + std::to_string(bytes) + " bytes) of " + std::to_string(cta.data.size()) +
                                       " bytes");
  if (!all_set(cta.state.data() + start, bytes)) check_state(cta, start, bytes, write);
  if (write) {
    std::memset(cta.state.data() + start, static_cast<int>(Byte::set), bytes);
    for (u32 i = start / CHUNK; i <= (start + bytes - 1) / CHUNK; ++i) cta.origin[i].tile = 0;
  }
  return cta.data.data() + start;
}

u8* Machine::locate_byte(Warp& warp, const Ins& ins, u64 address, u32 bytes, bool write) {
  if (address % bytes)
    throw Problem("misaligned", "an access of " + std::to_string(bytes) + " bytes at " + hex(address));
  Word space = ins.space;
  if (space == Word::none) {  // generic
    u64 top = address >> 48 << 48;
    space = space_of(address);
    if (space == Word::shared_cluster || space == Word::param) address -= top;
  }
  if (space == Word::param) {
    if (address + bytes > launch_.params.size() || write)
      throw Problem("out of bounds", "parameter space offset " + hex(address));
    return launch_.params.data() + address;
  }
  if (space == Word::const_) {
    if (write || !in_constants(address, bytes)) throw Problem("out of bounds", "constant space address " + hex(address));
    return reinterpret_cast<u8*>(address);
  }
  if (space == Word::global) {
    u8* place = global(address, bytes, write ? "a store" : "a load");
    observe_global(warp, address, bytes, write, ins);
    if (!launch_.fresh.empty()) check_fresh(address, bytes, !write || ins.op == Op::atom || ins.op == Op::red, write);
    return place;
  }
  u32 offset;
  Cta& cta = cta_of(warp, static_cast<u32>(address), space != Word::shared_cluster, &offset);
  if (ins.op == Op::atom || ins.op == Op::red) shared(cta, offset, bytes, false);
  u8* place = shared(cta, offset, bytes, write);
  observe(warp, cta, offset, bytes, write, ins);
  return place;
}

// Lanes that store to one place by one instruction: only one of their values stays, and which is not defined. Accesses
// of an instruction are aligned and of one size, so they overlap where their addresses are equal. same(a, b): whether
// two lanes store the same.
template <class Same>
void Machine::check_collisions(Warp& warp, const Ins& ins, const u64* address, u32 mask, Same same) {
  bool rising = mask == ALL;
  for (int l = 1; l < LANES; ++l) rising &= address[l] > address[l - 1];
  if (rising) return;
  constexpr u32 PLACES = 2 * LANES;
  u8 first[PLACES] = {};  // the lane that stores there, and 1, by a hash of the address
  for (int l = 0; l < LANES; ++l) {
    if (!(mask >> l & 1)) continue;
    u32 at = static_cast<u32>(address[l] * 0x9E3779B97F4A7C15ull >> 58);
    while (first[at] && address[first[at] - 1] != address[l]) at = (at + 1) % PLACES;
    int other = first[at] - 1;
    if (other < 0) {
      first[at] = static_cast<u8>(l + 1);
    } else if (!same(other, l)) {
      lane_ = l;
      const Cta* cta = nullptr;
      u32 offset = 0;
      if (is_shared(ins.space) || (ins.space == Word::none && space_of(address[l]) == Word::shared_cluster))
        cta = &cta_of(warp, static_cast<u32>(address[l]), false, &offset);
      Problem problem("race", place_name(cta ? offset - SHARED_BASE : address[l], cta) + " is written by lanes " +
                                  std::to_string(other) + " and " + std::to_string(l) +
                                  " of the warp at once, with different values");
      problem.others.emplace_back(ins.line, "lane " + std::to_string(other) + " writes it");
      throw problem;
    }
  }
}

void Machine::load_store(Warp& warp, const Ins& ins, u32 mask) {
  bool load = ins.op == Op::ld;
  const Operand& place = ins.arg(load ? 1 : 0);
  int data = load ? 0 : 1, count = ins.size(data);
  u32 size = static_cast<u32>(bytes_of(ins.type)), total = size * static_cast<u32>(count);
  bool narrow = is_shared(ins.space);
  u64 address[LANES];
  const u64* base = read<u64>(warp, place, mask);
  for (int l = 0; l < LANES; ++l) {
    address[l] = base[l] + static_cast<u64>(place.offset);
    if (narrow) address[l] = static_cast<u32>(address[l]);
  }
  if (settings_.lint) lint(ins, address, mask, total);
  const u64* values[8] = {};
  u64 loaded[8][LANES];
  if (!load)
    for (int e = 0; e < count; ++e) values[e] = read<u64>(warp, ins.arg(1, e), mask);
  for (int l = 0; l < LANES; ++l) {
    if (!(mask >> l & 1)) continue;
    lane_ = l;
    u8* bytes = locate_byte(warp, ins, address[l], total, !load);
    if (ins.order) order_access(warp, ins, 1u << l, bytes);
    for (int e = 0; e < count; ++e) {
      if (load) {
        u64 value = 0;
        std::memcpy(&value, bytes + e * size, size);
        if (is_signed(ins.type) && size < 8)
          value = static_cast<u64>(static_cast<s64>(value << (64 - 8 * size)) >> (64 - 8 * size));
        loaded[e][l] = value;
      } else {
        std::memcpy(bytes + e * size, &values[e][l], size);
      }
    }
  }
  lane_ = -1;
  if (load) {
    for (int e = 0; e < count; ++e) write<u64>(warp, ins.arg(0, e), loaded[e], mask);
  } else if (!(ins.order & STRONG)) {
    check_collisions(warp, ins, address, mask, [&](int a, int b) {
      for (int e = 0; e < count; ++e)
        if (std::memcmp(&values[e][a], &values[e][b], size) != 0) return false;
      return true;
    });
  }
}

// 8x8 matrices of 16-bit elements: lane 8i + r holds the address of row r of matrix i; register i holds, in lane l, the
// elements (l/4, 2(l%4)) and the next, or of the transposed matrix.
void Machine::matrix(Warp& warp, const Ins& ins, u32 mask) {
  bool load = ins.op == Op::ldmatrix, trans = ins.flags & TRANS;
  const Operand& place = ins.arg(load ? 1 : 0);
  int data = load ? 0 : 1, count = ins.size(data);
  const u32* base = read<u32>(warp, place, mask);
  u64 address[LANES];
  for (int l = 0; l < LANES; ++l) address[l] = static_cast<u32>(base[l] + place.offset);
  u32 rowed = static_cast<u32>((1ull << (8 * count)) - 1);
  if (settings_.lint) lint(ins, address, rowed, 16);
  u8 stored[LANES][16];  // by row
  for (int i = 0; i < count; ++i) {
    u8* rows[8];
    for (int r = 0; r < 8; ++r) {
      lane_ = 8 * i + r;
      rows[r] = locate_byte(warp, ins, address[lane_], 16, !load);
    }
    lane_ = -1;
    u32 out[LANES];
    const u32* in = load ? nullptr : read<u32>(warp, ins.arg(1, i), mask);
    for (int l = 0; l < LANES; ++l) {
      out[l] = 0;
      for (int half = 0; half < 2; ++half) {
        int row = l / 4, column = 2 * (l % 4) + half;
        if (trans) std::swap(row, column);
        u16 value = in ? static_cast<u16>(in[l] >> (16 * half)) : 0;
        if (load) {
          std::memcpy(&value, rows[row] + 2 * column, 2);
          out[l] |= static_cast<u32>(value) << (16 * half);
        } else {
          std::memcpy(rows[row] + 2 * column, &value, 2);
          std::memcpy(stored[8 * i + row] + 2 * column, &value, 2);
        }
      }
    }
    if (load) write<u32>(warp, ins.arg(0, i), out, mask);
  }
  if (!load)
    check_collisions(warp, ins, address, rowed, [&](int a, int b) { return std::memcmp(stored[a], stored[b], 16) == 0; });
}

bool Machine::memory(Warp& warp, const Ins& ins, u32 mask) {
  switch (ins.op) {
    case Op::ld:
    case Op::st: load_store(warp, ins, mask); return true;
    case Op::atom:
    case Op::red: atomic(warp, ins, mask); return true;
    case Op::ldmatrix:
    case Op::stmatrix: matrix(warp, ins, mask); return true;
    case Op::mov_wide: move_wide(warp, ins, mask); return true;
    case Op::clock: read_clock(warp, ins, mask); return true;
    default: return address_space(warp, ins, mask) || warp_matrix(warp, ins);
  }
}

}  // namespace sim
