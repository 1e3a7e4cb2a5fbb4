// The registers that wgmma uses: who may touch them when.
//
// wgmma.fence lies between any access of a register and a wgmma that uses it, and wgmma.wait_group between that wgmma
// and the next access. Their valid bits are hidden by the fence, so that only the first access after it costs anything.
#include "machine.h"
#include "registers.h"

namespace sim {

// A register cannot be read, or is hidden or in flight: notices the access, or reports it.
void Machine::unready(Warp& warp, int slot, u32 mask, bool writing) {
  if (warp.busy[slot] & HIDDEN) {
    WgmmaRegister& fragment = warp.fragments[slot];
    fragment.touched = current_;
    fragment.written = writing;
    warp.valid[slot] = fragment.valid;
    warp.busy[slot] = 0;
    warp.shown.push_back(slot);
    if (writing || (warp.valid[slot] & mask) == mask) return;
  }
  if (warp.busy[slot]) in_flight(warp, slot, writing ? "written" : "read");
  throw Problem("uninitialised register", program_.slots[slot].name + " is read before it was written");
}

void Machine::in_flight(const Warp& warp, int slot, const char* did) {
  bool owned = warp.busy[slot] % READ_AS_A != 0;
  Problem problem(owned ? "accumulator in flight" : "operand in flight",
                  program_.slots[slot].name + " is " + did + " while a wgmma that was not waited for " +
                      (owned ? "owns it" : "reads A from it") + "; wgmma.wait_group comes first");
  problem.others.emplace_back(warp.fragments[slot].user->line, "the wgmma");
  throw problem;
}

// wgmma.fence: the next access of each register is noticed.
void Machine::hide_fragments(Warp& warp) {
  warp.fenced = warp.clock;
  for (int slot : warp.shown) {
    WgmmaRegister& fragment = warp.fragments[slot];
    fragment.valid = warp.valid[slot];
    fragment.touched = nullptr;
    warp.valid[slot] = 0;
    warp.busy[slot] = HIDDEN;
  }
  warp.shown.clear();
}

void Machine::check_fence(const Warp& warp, int slot) {
  const std::string& name = program_.slots[slot].name;
  if (!warp.fenced) throw Problem("missing wgmma.fence", name + " is used, and there was no wgmma.fence at all");
  if (warp.busy[slot]) return;
  const WgmmaRegister& fragment = warp.fragments[slot];
  const char* did = fragment.written ? "written" : "read";
  Problem problem("missing wgmma.fence", name + " was " + did + " after the last wgmma.fence");
  problem.others.emplace_back(fragment.touched->line, std::string("it was ") + did);
  throw problem;
}

// The registers that wgmma adds to. Wgmmas of one shape may follow each other on them.
void Machine::own_sums(Warp& warp, const Ins& ins, bool accumulate) {
  for (int i = 0; i < ins.size(WGMMA_D); ++i) {
    int slot = ins.arg(WGMMA_D, i).slot;
    WgmmaRegister& fragment = warp.fragments[slot];
    check_fence(warp, slot);
    u32& busy = warp.busy[slot];
    if (!(busy & HIDDEN)) {
      if (busy >= READ_AS_A) in_flight(warp, slot, "written by a wgmma");
      const Ins& last = *fragment.user;
      if ((last.n != ins.n || last.k != ins.k || last.type != ins.type) && fragment.used > warp.fenced) {
        Problem problem("missing wgmma.fence", program_.slots[slot].name +
                                                   " is an accumulator of wgmmas of two shapes, and no wgmma.fence lies between");
        problem.others.emplace_back(last.line, "the other wgmma");
        throw problem;
      }
    } else if (accumulate && fragment.valid != ALL) {
      throw Problem("uninitialised register", program_.slots[slot].name + " is read before it was written");
    }
    busy = (busy & IN_FLIGHT) + OWNED;
    fragment.valid = ALL;
    fragment.user = &ins;
    fragment.used = warp.clock;
    warp.wgmma_groups.back().owned.push_back(slot);
  }
}

// A of a wgmma that reads it from registers: 4 per lane. Other wgmmas may read the same.
std::vector<u32> Machine::read_fragments(Warp& warp, const Ins& ins) {
  std::vector<u32> words(4 * LANES);
  for (int g = 0; g < 4; ++g) {
    int slot = ins.arg(WGMMA_A, g).slot;
    WgmmaRegister& fragment = warp.fragments[slot];
    check_fence(warp, slot);
    u32& busy = warp.busy[slot];
    if (busy % READ_AS_A) in_flight(warp, slot, "read as A by another wgmma");
    if (fragment.valid != ALL)
      throw Problem("uninitialised register", program_.slots[slot].name + " is read before it was written");
    busy = (busy & IN_FLIGHT) + READ_AS_A;
    fragment.user = &ins;
    fragment.used = warp.clock;
    warp.wgmma_groups.back().read.push_back(slot);
    const u32* lanes = reinterpret_cast<const u32*>(warp.file.data() + program_.slots[slot].offset);
    for (int l = 0; l < LANES; ++l) words[static_cast<size_t>(4 * l + g)] = lanes[l];
  }
  return words;
}

// A group is done: its registers are as after a fence.
void Machine::let_go(Warp& warp, const WgmmaGroup& group) {
  auto drop = [&](int slot, u32 count) {
    u32& busy = warp.busy[slot];
    busy -= count;
    if (!busy) busy = HIDDEN;
  };
  for (int slot : group.owned) drop(slot, OWNED);
  for (int slot : group.read) drop(slot, READ_AS_A);
}

}  // namespace sim
