// A launch, how it is carried out, and what goes on in it beside the warps.
#pragma once

#include <map>

#include "block.h"
#include "tensor_map.h"

namespace sim {

constexpr u64 PARAM_SPACE = 0x7F00ull << 48, SHARED_SPACE = 0x7E00ull << 48;  // generic addresses

enum class Policy : int { lazy, eager, reverse, random };

struct Segment {
  u64 base, size;
};

// Memory of which nothing is known when the launch begins, and what of it has been written since.
struct Fresh {
  Segment where;
  std::vector<u8> written;
};

// What the accesses of an instruction took in all, and the least that would have done: wavefronts of shared memory, or
// sectors of global memory.
struct Traffic {
  enum Kind : s64 { shared, global, KINDS };
  s64 kind, line, runs, done, least;
};

struct Settings {
  Policy policy = Policy::lazy;
  u64 seed = 0;
  u64 limit = 0;  // instructions of warps, 0 for none
  u32 multiprocessors = 1;
  u32 resident = 0;         // clusters at once; 0 to draw their number
  bool interleave = false;  // whether lanes that have diverged take turns
  bool trace = false, lint = false;
};

struct Launch {
  u32 grid[3] = {1, 1, 1};
  std::vector<u8> params;
  std::map<u32, TensorMap> maps;  // by offset in the parameters
  std::vector<Segment> segments;  // what may be accessed, by address
  std::vector<Fresh> fresh;       // parts of it
};

// A copy that goes on by itself: to shared memory from global memory (load; element by cp.async), from that of another CTA
// (exchange) or from registers (deposit), or from shared to global memory (store); and the arrival that follows elements.
struct Copy {
  enum Kind { load, store, exchange, element, deposit, arrival } kind;
  const Ins* ins;
  Cta* cta;    // whose shared memory it writes, or of a store, reads
  u32 shared;  // offset there
  Cta* source_cta = nullptr;  // of an exchange
  u32 source = 0;
  u64 global = 0, bytes = 0;
  u64 valid = 0;  // of an element: bytes that are read; the rest is zero
  const TensorMap* map = nullptr;
  s32 at[5] = {};
  u32 offsets[3] = {};  // of im2col
  Word reduction{};
  Type type{};  // of what is reduced
  Cta* barrier_cta = nullptr;
  u32 barrier = 0;
  Warp* issuer = nullptr;
  int lane = 0;
  u64 group = 0;
  bool read = false;  // whether the source lies in the snapshot
  std::vector<u8> snapshot;
  std::shared_ptr<const Clock> known;  // to its issuer
  u32 issued = 0;                      // the issuer's clock
  u32 actor = 0, number = 0;           // who stands for it in the order of accesses, and that one's clock
  u64 since = 0;                       // when it was issued

  bool writes_shared() const { return kind != store && kind != arrival; }
  bool generic() const { return kind == element || kind == deposit || kind == arrival; }
};

// A tensor map in global memory that was changed during the launch.
struct MapEdit {
  u64 version;
  u32 actor;
  bool released;
  int line;
};

// Something that took a while, for a trace. times: warp instructions executed so far.
struct Event {
  enum Kind : s64 { run, wait, load, store, wgmma };
  s64 kind, cta, warp, begin, end, line, what, address, number;
};

}  // namespace sim
