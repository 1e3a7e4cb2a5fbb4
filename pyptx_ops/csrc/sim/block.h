// What a cluster holds: its CTAs with their shared memory and barriers, and their warps.
#pragma once

#include <array>
#include <deque>
#include <map>

#include "clocks.h"
#include "program.h"
#include "provenance.h"

namespace sim {

constexpr u32 SHARED_BASE = 1024;  // of a CTA's window; what lies below is the system's
constexpr u32 WINDOW = 1u << 24;   // shared::cluster addresses are rank << 24 | offset

// What a byte of shared memory holds.
enum class Byte : u8 { unset, set, in_flight, barrier };

struct MBarrier {
  u32 expected = 0, pending = 0;
  s64 tx = 0;
  u64 phase = 0;
  int line = 0, arrival = 0;  // of its initialisation; of what arrived or brought bytes last
  u32 actor = 0, generic_actor = 0;  // for copies that report to it, through the asynchronous and the generic proxy
  Epoch initialised;
  bool published = false;                          // by fence.mbarrier_init
  Clock gathering, done, gathering_far, done_far;  // of this phase and of those before, also from other CTAs
};

struct NamedBarrier {
  u32 arrived = 0, expected = 0;
  u64 generation = 0;
  Clock gathering, done;
};

constexpr u32 CHUNK = 16;

enum class Wait : u8 { none, mbarrier, named, cluster, warp, warp_barrier, registers, bulk, elements };

// Lanes of a warp that stand at one instruction together.
struct Group {
  int pc = 0;
  u32 mask = ALL;
  Wait wait = Wait::none;
  u32 address = 0, parity = 0, wanted = 0;  // of what it waits for
  u64 generation = 0;
  int wait_closed = -1;  // the cp.async.wait_all that has closed the open groups
  u64 since = 0;  // when it began to wait, where that is traced
};

// A register that wgmma uses. Its valid bits are hidden from wgmma.fence on, so that the next access is noticed.
struct WgmmaRegister {
  u32 valid = 0;                   // lanes that were written, while that is hidden
  const Ins* touched = nullptr;    // the access that was noticed
  bool written = false;            // whether that was a write
  const Ins* user = nullptr;       // the last wgmma that it was an operand of
  u32 used = 0;                    // when that was issued
};
enum Busy : u32 { OWNED = 1, READ_AS_A = 1 << 14, IN_FLIGHT = (1u << 31) - 1, HIDDEN = 1u << 31 };

struct Wgmma {
  const Ins* ins;
  u64 a, b;
  bool accumulate;
  std::vector<u32> a_registers;  // 4 per lane, where A does not come from shared memory
  std::shared_ptr<const Clock> clock;  // of its warp when it was issued
  u32 issued;                          // that warp's own clock
  u32 number;                          // among its warp's, from 1
  mutable Epoch in_order;              // a write that it comes after
};

struct WgmmaGroup {
  size_t left = 0;         // wgmmas that were not carried out yet
  u32 last = 0;            // the number of the last one
  u64 since = 0;           // when the first one was issued, and its line
  int line = 0;
  std::vector<int> owned, read;  // registers, each as often as a wgmma of the group writes it, or reads A from it
  struct Step {            // tiles of A and B that a wgmma multiplied, and the coordinates along K
    u32 tile_a, tile_b;
    s64 a, b;
  };
  std::vector<Step> steps;
};

using LaneOrder = std::array<std::array<u32, LANES>, LANES>;  // [a][b]: up to which clock a knows what b did

struct Cta;

struct Warp {
  Cta* cta = nullptr;
  int index = 0;
  std::vector<Group> groups;
  std::vector<u8> file;
  std::vector<u32> valid;  // per register: the lanes that were written
  std::vector<u32> busy;   // per register: how many wgmmas in flight own it (Busy), and whether its valid bits are hidden
  std::vector<WgmmaRegister> fragments;  // per register, where there is a wgmma
  std::vector<int> shown;           // of these, those whose valid bits are not hidden, and that no wgmma in flight uses
  u32 clock = 0, fenced = 0;
  std::deque<Wgmma> queue;                 // wgmmas that were not carried out yet
  std::deque<WgmmaGroup> wgmma_groups{1};  // the committed ones, and the open one last
  u64 wgmmas = 0;
  u32 registers = 0;  // per thread, after setmaxnreg
  size_t budgets = 0;  // how often it executed that
  bool cluster_arrived[LANES] = {};
  u64 cluster_phase[LANES] = {};
  u64 bulk_open[LANES] = {};   // the number of the bulk group that is open
  u32 bulk_actor[LANES] = {};  // of its bulk stores as readers; the next one is theirs as writers
  u64 element_open[LANES] = {};   // of cp.async
  u32 element_actor[LANES] = {};
  std::map<u64, u64> maps_known;  // edited tensor maps by address: up to which edit an acquire fence was passed
  u32 alive = ALL;
  u32 went = ALL;  // the group of lanes that went last, where several take turns
  u32 actor = 0;
  Clock now;
  std::shared_ptr<const Clock> shot;  // of `now`, while that does not change
  u32 aligned = 0;                    // up to this clock its lanes know of each other
  std::unique_ptr<LaneOrder> lanes;   // beyond that
  std::vector<Message> heard;         // by relaxed loads, until a fence
  std::map<u32, Clock> announced;     // by fences of each scope, for relaxed stores
};

struct Cluster;

// Of the copies of one actor the last that reads or writes a CTA's shared memory.
struct LastCopy {
  u32 number;
  int line;
  const Warp* issuer;
};

struct Cta {
  Cluster* cluster = nullptr;
  u32 rank = 0, id[3] = {};
  std::vector<u8> data, state;
  std::vector<Origin> origin;        // of every 16 bytes
  std::map<u32, MBarrier> barriers;  // by offset
  std::map<u32, LastCopy> last_copies;  // by actor
  NamedBarrier named[16];
  std::vector<Warp> warps;
  u32 register_pool = 0;            // given back by setmaxnreg.dec
  std::vector<int> budget_log[8];  // per warpgroup: the lines of its setmaxnreg, in order
  std::unique_ptr<Shadow> shadow;
  std::vector<u32> fetches;  // per 16 bytes and warp: the last wgmma that read them
  std::vector<std::array<u64, 3>> wgmma_log[8];  // per warpgroup: what its warps issued, in order
  u32 alive() const {
    u32 lanes = 0;
    for (const Warp& w : warps) lanes += static_cast<u32>(__builtin_popcount(w.alive));
    return lanes;
  }
};

struct Cluster {
  std::vector<Cta> ctas;
  u32 arrived = 0;
  u64 phase = 0;
  u32 actors = 0, number = 0;
  Clock gathering, done;
};

std::string place_of(const Warp& warp);  // for reports

}  // namespace sim
