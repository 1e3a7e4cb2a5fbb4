// The machine: global memory, clusters of CTAs with their shared memory and barriers, warps, asynchronous copies.
#pragma once

#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>

#include "clocks.h"
#include "provenance.h"
#include "tensor_map.h"

namespace sim {

constexpr u32 SHARED_BASE = 1024;  // of a CTA's window; what lies below is the system's
constexpr u32 WINDOW = 1u << 24;   // shared::cluster addresses are rank << 24 | offset
constexpr u64 PARAM_SPACE = 0x7F00ull << 48, SHARED_SPACE = 0x7E00ull << 48;  // generic addresses

enum class Policy : int { lazy, eager, reverse, random };

struct Segment {
  u64 base, size;
};

// What a byte of shared memory holds.
enum class Byte : u8 { unset, set, in_flight, barrier };

struct MBarrier {
  u32 expected = 0, pending = 0;
  s64 tx = 0;
  u64 phase = 0;
  int line = 0;
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
  std::vector<int> owned;  // registers, each as often as a wgmma of the group writes it
  struct Step {            // tiles of A and B that a wgmma multiplied, and the coordinates along K
    u32 tile_a, tile_b;
    s64 a, b;
  };
  std::vector<Step> steps;
};

// Where a matrix descriptor finds the units of an operand.
struct MatrixLayout {
  u32 start, lbo, sbo, span;
  bool mn_major;
  MatrixLayout(u64 descriptor, bool mn_major);
  u32 address(u32 row, u32 k) const;
};

using LaneOrder = std::array<std::array<u32, LANES>, LANES>;  // [a][b]: up to which clock a knows what b did

struct Cta;

struct Warp {
  Cta* cta = nullptr;
  int index = 0;
  std::vector<Group> groups;
  std::vector<u8> file;
  std::vector<u32> valid;    // per register: the lanes that were written
  std::vector<u32> touched;  // per register: the clock of the last ordinary write
  std::vector<u16> busy;     // per register: how many wgmma groups in flight own it
  u32 clock = 0, fenced = 0;
  std::deque<Wgmma> queue;                 // wgmmas that were not carried out yet
  std::deque<WgmmaGroup> wgmma_groups{1};  // the committed ones, and the open one last
  u64 wgmmas = 0;
  u32 registers = 0;  // per thread, after setmaxnreg
  bool cluster_arrived[LANES] = {};
  u64 cluster_phase[LANES] = {};
  u64 bulk_open[LANES] = {};   // the number of the bulk group that is open
  u32 bulk_actor[LANES] = {};  // of its bulk stores as readers; the next one is theirs as writers
  u64 element_open[LANES] = {};   // of cp.async
  u32 element_actor[LANES] = {};
  std::map<u64, u64> maps_known;  // edited tensor maps by address: up to which edit an acquire fence was passed
  u32 alive = ALL;
  u32 actor = 0;
  Clock now;
  std::shared_ptr<const Clock> shot;  // of `now`, while that does not change
  u32 aligned = 0;                    // up to this clock its lanes know of each other
  std::unique_ptr<LaneOrder> lanes;   // beyond that
  std::vector<Message> heard;         // by relaxed loads, until a fence
  std::map<u32, Clock> announced;     // by fences of each scope, for relaxed stores
};

struct Cluster;

struct Cta {
  Cluster* cluster = nullptr;
  u32 rank = 0, id[3] = {};
  std::vector<u8> data, state;
  std::vector<Origin> origin;        // of every 16 bytes
  std::map<u32, MBarrier> barriers;  // by offset
  NamedBarrier named[16];
  std::vector<Warp> warps;
  u32 register_pool = 0;
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

struct Settings {
  Policy policy = Policy::lazy;
  u64 seed = 0;
  u64 limit = 0;  // instructions of warps, 0 for none
  bool trace = false;
};

struct Launch {
  u32 grid[3] = {1, 1, 1};
  std::vector<u8> params;
  std::map<u32, TensorMap> maps;  // by offset in the parameters
  std::vector<Segment> segments;  // what may be accessed, by address
};

class Machine {
 public:
  Machine(const Program& program, Launch launch, Settings settings);
  void run();
  void trace_open();
  u64 executed = 0;
  std::vector<Event> events;  // where the launch is traced

 private:
  const Program& program_;
  Launch launch_;
  Settings settings_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Cluster>> resident_;
  std::deque<Copy> copies_;
  std::vector<LoadedTile> tiles_;
  std::map<u64, MapEdit> map_edits_;               // by address
  std::map<std::string, TensorMap> edited_maps_;  // by content
  u64 map_version_ = 0;
  size_t last_segment_ = 0;
  Shadow shadow_;                                              // of global memory
  std::unordered_map<const u8*, std::vector<Message>> addresses_;  // where something was released
  u32 scratch32_[8][LANES];
  u64 scratch64_[8][LANES];
  int next_scratch_ = 0;
  int lane_ = -1;  // the lane at fault, for reports
  std::pair<const Warp*, u64> turn_{nullptr, 0};  // whose it is, and since when

  // trace.cpp
  void record(Event::Kind kind, const Warp& warp, u64 begin, int line, s64 what, u64 address, u64 number);
  bool traced_ready(Warp& warp, Group& group);
  void trace_wait(const Warp& warp, const Group& group);
  void trace_turn();
  void trace_copy(const Copy& copy);
  void trace_wgmmas(const Warp& warp, const WgmmaGroup& group);

  // scheduler.cpp
  std::unique_ptr<Cluster> start(u32 index);
  void start_warp(Cta& cta, Warp& warp, int index);
  bool finished(const Cluster& cluster);
  static bool polls(const Ins& ins);
  bool turn(Warp& warp, u32 quantum);
  int runnable(Warp& warp);
  bool ready(Warp& warp, Group& group);
  void settle(Warp& warp);
  bool advance_copies(bool stuck);
  [[noreturn]] void deadlock();
  [[noreturn]] void locate(Problem problem, const Warp& warp, const Ins& ins);
  void check_exit(Cluster& cluster);

  // special.cpp
  void place_cta(u32 cluster, u32 rank, u32* id) const;
  u64 special(const Preset& preset, const Cta& cta, const Warp& warp, u32 lane) const;
  void read_clock(Warp& warp, const Ins& ins, u32 mask);

  // execute.cpp
  void execute(Warp& warp, Group& group);
  bool control(Warp& warp, Group& group, const Ins& ins, u32 mask);
  void branch(Warp& warp, Group& group, const Ins& ins, u32 mask);
  bool together(Warp& warp, Group& group, u32 wanted, const char* what);
  void leave(Warp& warp, Group& group, u32 mask);
  void shuffle(Warp& warp, const Ins& ins, u32 mask);
  void vote(Warp& warp, const Ins& ins, u32 mask);
  void match(Warp& warp, const Ins& ins, u32 mask);
  void redux(Warp& warp, const Ins& ins, u32 mask);

  // arithmetic.cpp
  void compute(Warp& warp, const Ins& ins, u32 mask);

  // memory.cpp
  bool memory(Warp& warp, const Ins& ins, u32 mask);
  void load_store(Warp& warp, const Ins& ins, u32 mask);
  void matrix(Warp& warp, const Ins& ins, u32 mask);
  u8* global(u64 address, u64 bytes, const char* what);
  u8* shared(Cta& cta, u32 offset, u32 bytes, bool write);
  void complete_cluster(Cluster& cluster);
  u8* locate_byte(Warp& warp, const Ins& ins, u64 address, u32 bytes, bool write);
  Cta& cta_of(Warp& warp, u32 address, bool own, u32* offset);

  // atomics.cpp
  void atomic(Warp& warp, const Ins& ins, u32 mask);

  // spaces.cpp
  bool address_space(Warp& warp, const Ins& ins, u32 mask);
  bool in_constants(u64 address, u64 bytes) const;
  Word space_of(u64 address) const;
  bool lies_in(const Warp& warp, u64 address, Word space) const;
  u64 base_of(Word space) const;
  void move_wide(Warp& warp, const Ins& ins, u32 mask);

  // mma.cpp
  bool warp_matrix(Warp& warp, const Ins& ins, u32 mask);
  void mma_sync(Warp& warp, const Ins& ins);
  void mma_double(Warp& warp, const Ins& ins);
  void move_matrix(Warp& warp, const Ins& ins);

  // sync.cpp
  bool synchronise(Warp& warp, Group& group, const Ins& ins, u32 mask);
  bool named_barrier(Warp& warp, Group& group, const Ins& ins);
  bool cluster_barrier(Warp& warp, Group& group, const Ins& ins, u32 mask);
  bool registers(Warp& warp, Group& group, const Ins& ins);
  void mbarrier(Warp& warp, const Ins& ins, u32 mask);
  bool wait_parity(Warp& warp, Group& group, const Ins& ins, u32 mask);
  MBarrier& barrier_at(Cta& cta, u32 offset);
  void arrive(MBarrier& barrier, u32 count);
  void arrive_at(Warp& warp, const Cta& cta, MBarrier& barrier, const Ins& ins, u32 lanes);
  void complete(MBarrier& barrier);
  std::string describe(const MBarrier& barrier) const;

  // copies.cpp
  void claim(Cta& cta, u32 offset, u64 bytes);
  void check_inside(const Cta& cta, u32 offset, u64 bytes);
  void name_actor(Copy& copy);
  void issue(Copy copy);
  void read_source(Copy& copy);
  void reduce(const Copy& copy, u8* to, const u8* from, u64 bytes, bool global);
  void write_shared(Copy& copy);
  void carry_out(Copy& copy);
  void finish(size_t index);
  bool copies_done(const Warp& warp, const Group& group, Copy::Kind kind) const;

  // bulk.cpp
  bool asynchronous(Warp& warp, Group& group, const Ins& ins, u32 mask);
  void bulk(Warp& warp, const Ins& ins, int lane, u32 mask);
  void find_tile(Warp& warp, const Ins& ins, u64 address, int lane, u32 mask, Copy& copy);
  const TensorMap& map_at(const Warp& warp, u64 address);
  void load_tile(Copy& copy);
  void store_tile(Copy& copy);

  // elements.cpp
  bool elements(Warp& warp, Group& group, const Ins& ins, u32 mask);
  void copy_element(Warp& warp, const Ins& ins, int lane, u32 mask);
  void arrive_later(Warp& warp, const Ins& ins, int lane, u32 mask);
  void deposit(Warp& warp, const Ins& ins, int lane, u32 mask);

  // map_edits.cpp
  bool edit_map(Warp& warp, Group& group, const Ins& ins, u32 mask);
  void check_edit(const Warp& warp, u64 address) const;
  void replace_in_map(Warp& warp, const Ins& ins, u32 mask);
  void publish_map(Warp& warp, const Ins& ins);

  // wgmma.cpp
  bool matrix_multiply(Warp& warp, Group& group, const Ins& ins, u32 mask);
  void issue_wgmma(Warp& warp, const Ins& ins, u32 mask);
  void carry_out_wgmma(Warp& warp);
  void wait_wgmma(Warp& warp, u32 pending);
  Fetched fetch(const Warp& warp, const Wgmma& op, u64 descriptor, bool mn_major, int first, int rows, u8* out,
                const char* operand);
  const u8* fetch_unit(const Warp& warp, const Wgmma& op, u32 address, const char* operand, u32 row, u32 k);

  // provenance.cpp
  void check_steps(WgmmaGroup& group, const Fetched& a, const Fetched& b);

  // races.cpp
  u32 new_actor(Cluster& cluster, u32 count);
  std::string name_of(u32 actor, const Cta* cta) const;
  std::string place_name(u64 address, const Cta* cta) const;
  std::shared_ptr<const Clock> snapshot(Warp& warp);
  void release(Warp& warp, u32 lanes, Clock& into);
  void acquire(Warp& warp, u32 lanes, const Clock& from);
  void order_lanes(Warp& warp, u32 before, u32 after, u32 clock);
  void meet_lanes(Warp& warp, u32 mask);
  void fence_proxy(Warp& warp, u32 lanes);
  bool lanes_ordered(const Warp& warp, const Epoch& before, u32 lanes) const;
  bool ordered(const Epoch& before, const Touch& touch) const;
  bool proxied(const Epoch& before, const Touch& touch) const;
  [[noreturn]] void race(const Epoch& before, bool wrote, const Touch& touch, u64 address, const Cta* cta) const;
  [[noreturn]] void missing_fence(const Epoch& before, const Touch& touch, u64 address, const Cta* cta) const;
  Touch touch_of(const Warp& warp, const Ins& ins, bool write) const;
  Touch touch_of(const Copy& copy, bool write, u32 actor) const;
  void touch(Shadow& shadow, u64 start, u64 bytes, const Touch& touch, const Cta* cta);
  void note_read(Page& page, u32 index, const Touch& touch);
  void after_reads(Page& page, u32 index, const Touch& touch, u64 address, Epoch& known, const Cta* cta);
  void observe(Warp& warp, Cta& cta, u32 offset, u32 bytes, bool write, const Ins& ins);
  void observe_global(Warp& warp, u64 address, u64 bytes, bool write, const Ins& ins);
  void observe_copy(const Copy& copy);
  u8* copied(const Copy& copy, u64 address, u64 bytes, const char* what);
  void reach_stores(Warp& warp, u32 lanes, u64 pending, bool read_only);
  void observe_fetch(const Warp& warp, Cta& cta, const Wgmma& op, u32 offset, u32 bytes);
  void after_fetches(Cta& cta, const Clock& known, u32 offset, u32 bytes, const char* what);
  void observe_barrier(Warp& warp, Cta& cta, const MBarrier& barrier, bool from_afar);

  // orders.cpp
  void order_access(Warp& warp, const Ins& ins, u32 lanes, const u8* place);
  void take(Warp& warp, u32 lanes, const Message& message);
  void fence(Warp& warp, const Ins& ins, u32 lanes);

  // registers
  void check_read(const Warp& warp, int slot, u32 mask) {
    if ((warp.valid[slot] & mask) != mask) unready(warp, slot, false);
  }
  void check_write(Warp& warp, int slot, u32 mask) {
    if (warp.busy[slot]) unready(warp, slot, true);
    warp.valid[slot] |= mask;
    warp.touched[slot] = warp.clock;
  }
  template <class S>
  const S* read(Warp& warp, const Operand& operand, u32 mask);
  template <class S>
  void write(Warp& warp, const Operand& operand, const S* value, u32 mask);
  u32 predicate(const Warp& warp, int slot, bool negated, u32 mask);
  u32 read_pred(Warp& warp, const Operand& operand, u32 mask);
  void write_pred(Warp& warp, const Operand& operand, u32 value, u32 mask);
  u32 uniform(Warp& warp, const Operand& operand, u32 mask);
  void unready(const Warp& warp, int slot, bool writing);
};

template <class S>
const S* Machine::read(Warp& warp, const Operand& operand, u32 mask) {
  constexpr bool wide = sizeof(S) == 8;
  if (operand.kind == Operand::literal) {
    if constexpr (wide)
      return operand.lanes64->data();
    else
      return operand.lanes32->data();
  }
  if (operand.slot < 0) throw Problem("unsupported", "an operand that is no register or literal is read");
  check_read(warp, operand.slot, mask);
  const Slot& slot = program_.slots[operand.slot];
  u8* place = warp.file.data() + slot.offset;
  if (slot.wide == wide) return reinterpret_cast<const S*>(place);
  int index = next_scratch_++ & 7;
  if constexpr (wide) {
    for (int l = 0; l < LANES; ++l) scratch64_[index][l] = reinterpret_cast<const u32*>(place)[l];
    return scratch64_[index];
  } else {
    for (int l = 0; l < LANES; ++l) scratch32_[index][l] = static_cast<u32>(reinterpret_cast<const u64*>(place)[l]);
    return scratch32_[index];
  }
}

template <class S>
void Machine::write(Warp& warp, const Operand& operand, const S* value, u32 mask) {
  if (operand.kind == Operand::none) return;  // the sink
  const Slot& slot = program_.slots[operand.slot];
  check_write(warp, operand.slot, mask);
  u8* place = warp.file.data() + slot.offset;
  auto store = [&](auto* lanes) {
    using L = std::remove_reference_t<decltype(*lanes)>;
    if (mask == ALL) {
      for (int l = 0; l < LANES; ++l) lanes[l] = static_cast<L>(value[l]);
    } else {
      for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) lanes[l] = static_cast<L>(value[l]);
    }
  };
  if (slot.wide)
    store(reinterpret_cast<u64*>(place));
  else
    store(reinterpret_cast<u32*>(place));
}

inline u32 Machine::predicate(const Warp& warp, int slot, bool negated, u32 mask) {
  check_read(warp, slot, mask);
  u32 value = *reinterpret_cast<const u32*>(warp.file.data() + program_.slots[slot].offset);
  return negated ? ~value : value;
}

inline u32 Machine::read_pred(Warp& warp, const Operand& operand, u32 mask) {
  if (operand.kind == Operand::literal) return operand.value ? ALL : 0;
  return predicate(warp, operand.slot, operand.negated, mask);
}

inline void Machine::write_pred(Warp& warp, const Operand& operand, u32 value, u32 mask) {
  if (operand.kind == Operand::none) return;
  u32& place = *reinterpret_cast<u32*>(warp.file.data() + program_.slots[operand.slot].offset);
  place = (place & ~mask) | (value & mask);
  warp.valid[operand.slot] |= mask;
}

}  // namespace sim
