// Logical time, and what is remembered of memory: who touched each word last, and when. How they are used: races.cpp.
#pragma once

#include <cstdlib>
#include <map>
#include <unordered_map>

#include "program.h"

namespace sim {

// What some lanes of a warp have done and let others know, where the rest of the warp has not.
struct Part {
  u32 actor, lanes, seen, proxied;
};

// Up to which clock of each actor one may rely on what it did (`seen`), also through the asynchronous proxy (`proxied`).
struct Clock {
  std::vector<u32> seen, proxied;  // by actor of the cluster
  std::vector<Part> parts;
  std::shared_ptr<const std::map<u32, Clock>> elsewhere;  // of other clusters, by their number
  void learn(const Clock& other);
  void learn_elsewhere(u32 cluster, const Clock& other);
  void learn_parts(const Clock& other);
  void see(u32 actor, u32 clock);    // what it did up to then
  void trust(u32 actor, u32 clock);  // that these writes have passed a proxy fence
  void reach(u32 actor, u32 clock);  // both
  void pass_fence();
  u32 seen_of(u32 actor) const { return actor < seen.size() ? seen[actor] : 0; }
  void reach_part(const Part& part);
  bool sees(u32 actor, u32 clock, u32 lanes) const;
  bool sees_proxied(u32 actor, u32 clock, u32 lanes) const;
};

// One access: an actor at a clock of its own. Clock 0 is none.
struct Epoch {
  u32 clock = 0;
  u32 actor = 0;  // the cluster's number << 16 | its actor
  u32 lanes = 0;  // of a warp; 0 for what no lane does by itself
  u32 line : 24;
  u32 strong : 2;  // scope of an atomic access: 1 CTA, 2 cluster, 3 device
  u32 async : 1;
  u32 more : 1;  // of reads: there are others
  Epoch() : line(0), strong(0), async(0), more(0) {}
  bool alike(const Epoch& e) const { return clock == e.clock && actor == e.actor && lanes == e.lanes; }
};

// What is remembered of 1 KiB, by units of 16 bytes, or of 4 or 1 once parts of these have been accessed: the last write,
// and the reads since that nothing orders among each other: one, a second, and all others.
struct Page {
  static constexpr u32 BYTES = 1024;
  u32 unit;
  std::vector<Epoch> writes, reads, seconds;  // each empty as long as there are none
  std::unordered_map<u32, std::vector<Epoch>> others;
  bool calm = false;  // of shared memory: every byte is set, and one epoch wrote them all
  explicit Page(u32 unit) : unit(unit) {}
  u32 units() const { return BYTES / unit; }
  void split(u32 smaller);
};

// Pages of a CTA's shared memory or of global memory, made when they are first touched.
class Shadow {
 public:
  explicit Shadow(u64 bytes = 0) : dense_(bytes / Page::BYTES + 1) {}

  // f(page, first unit, past the last one, address of the first) for each page of these bytes.
  template <class F>
  void each(u64 start, u64 bytes, F f) {
    for (u64 at = start, end = start + bytes; at < end;) {
      u64 stop = (at / Page::BYTES + 1) * Page::BYTES;
      if (stop > end) stop = end;
      u32 unit = (at | stop) % 4 ? 1 : (at | stop) % 16 ? 4 : 16;
      Page& page = this->page(at / Page::BYTES, unit);
      if (page.unit > unit) page.split(unit);
      u32 first = static_cast<u32>(at % Page::BYTES) / page.unit;
      f(page, first, first + static_cast<u32>(stop - at) / page.unit, at);
      at = stop;
    }
  }

  Page& page_of(u64 address) { return page(address / Page::BYTES, 16); }

 private:
  std::vector<std::unique_ptr<Page>> dense_;
  std::unordered_map<u64, std::unique_ptr<Page>> sparse_;
  u64 last_number_ = ~0ull;
  Page* last_ = nullptr;
  Page& page(u64 number, u32 unit) {
    if (number == last_number_) return *last_;
    auto& found = number < dense_.size() ? dense_[number] : sparse_[number];
    if (!found) found = std::make_unique<Page>(unit);
    last_number_ = number;
    return *(last_ = found.get());
  }
};

// One side of a possible race: who touches memory, what it may rely on, and what is remembered of it.
struct Touch {
  const Clock* known;
  u32 self;            // the actor whose own accesses come before in program order, up to `until`
  u32 until;
  const struct Warp* warp;  // of `self`, for the order between its lanes
  u32 lanes;                // 0: whatever the warp did before is in order
  bool writes;
  Epoch mark;
};

// What a release or a relaxed store left at an address, for those who acquire it there.
struct Message {
  u32 cluster, cta, scope;
  Clock clock;
};

}  // namespace sim
