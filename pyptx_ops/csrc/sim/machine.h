// The machine: global memory, the clusters that are resident, asynchronous copies.
#pragma once

#include <cstdlib>
#include <random>

#include "launch.h"

namespace sim {

class Machine {
 public:
  Machine(const Program& program, Launch launch, Settings settings);
  void run();
  void trace_open();
  u64 executed = 0;
  std::vector<Event> events;  // where the launch is traced
  std::vector<Traffic> traffic() const;

 private:
  const Program& program_;
  Launch launch_;
  Settings settings_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Cluster>> resident_;
  std::vector<u32> order_;  // of clusters
  size_t started_ = 0;      // of these
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
  std::vector<Traffic> traffic_;  // by instruction and kind, where that is counted
  int lane_ = -1;  // the lane at fault, for reports
  const Ins* current_ = nullptr;
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
  size_t most_resident();
  bool renew(size_t limit);
  [[noreturn]] void endless(const Warp& warp);
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
  bool whole(Warp& warp, Group& group, u32 mask);
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
  template <class Same>
  void check_collisions(Warp& warp, const Ins& ins, const u64* address, u32 mask, Same same);
  void matrix(Warp& warp, const Ins& ins, u32 mask);
  u8* global(u64 address, u64 bytes, const char* what);
  void check_fresh(u64 address, u64 bytes, bool reads, bool writes);
  void check_state(const Cta& cta, u32 start, u32 bytes, bool write) const;
  u8* shared(Cta& cta, u32 offset, u32 bytes, bool write);
  void complete_cluster(Cluster& cluster);
  u8* locate_byte(Warp& warp, const Ins& ins, u64 address, u32 bytes, bool write);
  Cta& cta_of(Warp& warp, u32 address, bool own, u32* offset);
  void check_runs(const Warp& warp, const Cta& cta) const;

  // lints.cpp
  void count(const Ins& ins, Traffic::Kind kind, u64 done, u64 least);
  void lint(const Ins& ins, const u64* address, u32 mask, u32 bytes);
  void lint_shared(const Ins& ins, const u64* address, u32 mask, u32 bytes);
  void lint_global(const Ins& ins, const u64* address, u32 mask, u32 bytes);

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
  bool warp_matrix(Warp& warp, const Ins& ins);
  void mma_sync(Warp& warp, const Ins& ins);
  void mma_double(Warp& warp, const Ins& ins);
  void move_matrix(Warp& warp, const Ins& ins);

  // sync.cpp
  bool synchronise(Warp& warp, Group& group, const Ins& ins, u32 mask);
  bool named_barrier(Warp& warp, Group& group, const Ins& ins);
  bool cluster_barrier(Warp& warp, Group& group, const Ins& ins, u32 mask);
  bool registers(Warp& warp, Group& group, const Ins& ins);
  void mbarrier(Warp& warp, const Ins& ins, u32 mask);
  void suspend(Warp& warp, Group& group, u32 mask, const u32* offset, const u32* parity);
  bool wait_parity(Warp& warp, Group& group, const Ins& ins, u32 mask);
  void check_lapped(const Warp& warp, const MBarrier& barrier, u32 offset, u32 parity) const;
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
  void find_window(Warp& warp, const Ins& ins, int lane, u32 mask, Copy& copy);
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

  // fragments.cpp
  void hide_fragments(Warp& warp);
  [[noreturn]] void in_flight(const Warp& warp, int slot, const char* did);
  void check_fence(const Warp& warp, int slot);
  void own_sums(Warp& warp, const Ins& ins, bool accumulate);
  std::vector<u32> read_fragments(Warp& warp, const Ins& ins);
  void let_go(Warp& warp, const WgmmaGroup& group);

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
  bool calm(Cta& cta, const Wgmma& op, u32 offset);
  void observe_fetch(const Warp& warp, Cta& cta, const Wgmma& op, u32 offset, u32 bytes);
  void after_fetches(Cta& cta, const Clock& known, u32 offset, u32 bytes, const char* what);
  void observe_barrier(Warp& warp, Cta& cta, const MBarrier& barrier, bool from_afar);

  // orders.cpp
  void order_access(Warp& warp, const Ins& ins, u32 lanes, const u8* place);
  void take(Warp& warp, u32 lanes, const Message& message);
  void fence(Warp& warp, const Ins& ins, u32 lanes);

  // registers
  void check_read(Warp& warp, int slot, u32 mask) {
    if ((warp.valid[slot] & mask) != mask) unready(warp, slot, mask, false);
  }
  void check_write(Warp& warp, int slot, u32 mask) {
    if (warp.busy[slot]) unready(warp, slot, mask, true);
    warp.valid[slot] |= mask;
  }
  template <class S>
  const S* read(Warp& warp, const Operand& operand, u32 mask);
  template <class S>
  void write(Warp& warp, const Operand& operand, const S* value, u32 mask);
  u32 predicate(Warp& warp, int slot, bool negated, u32 mask);
  u32 read_pred(Warp& warp, const Operand& operand, u32 mask);
  void write_pred(Warp& warp, const Operand& operand, u32 value, u32 mask);
  u32 uniform(Warp& warp, const Operand& operand, u32 mask);
  void unready(Warp& warp, int slot, u32 mask, bool writing);
};

}  // namespace sim
