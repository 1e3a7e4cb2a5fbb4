// cp.async, whose copies belong to groups of a thread; st.async and red.async, which report to an mbarrier. All of them
// go through the generic proxy.
#include <cstring>

#include "machine.h"
#include "registers.h"

namespace sim {
namespace {

enum : int { ARG_TO, ARG_FROM, ARG_SIZE, ARG_VALID, ARG_IGNORE };  // of cp.async
enum : int { ARG_ADDRESS, ARG_VALUE, ARG_BARRIER };                // of st.async and red.async

}  // namespace

void Machine::copy_element(Warp& warp, const Ins& ins, int lane, u32 mask) {
  Copy copy{};
  copy.kind = Copy::element;
  copy.ins = &ins;
  copy.issuer = &warp;
  copy.lane = lane;
  copy.group = warp.element_open[lane];
  copy.bytes = copy.valid = static_cast<u64>(ins.arg(ARG_SIZE).value);
  const Operand &to = ins.arg(ARG_TO), &from = ins.arg(ARG_FROM), &valid = ins.arg(ARG_VALID), &ignore = ins.arg(ARG_IGNORE);
  copy.cta = &cta_of(warp, static_cast<u32>(read<u64>(warp, to, mask)[lane] + static_cast<u64>(to.offset)), true, &copy.shared);
  copy.global = read<u64>(warp, from, mask)[lane] + static_cast<u64>(from.offset);
  if (valid.kind != Operand::none) copy.valid = read<u32>(warp, valid, mask)[lane];
  if (ignore.kind != Operand::none && (read_pred(warp, ignore, mask) >> lane & 1)) copy.valid = 0;
  if (copy.valid > copy.bytes)
    throw Problem("out of bounds", "cp.async of " + std::to_string(copy.bytes) + " bytes has a source of " +
                                       std::to_string(copy.valid));
  if (copy.shared % copy.bytes || copy.global % copy.bytes)
    throw Problem("misaligned", "cp.async of " + std::to_string(copy.bytes) + " bytes needs addresses that are multiples of them");
  issue(std::move(copy));
}

// The arrival of a thread at an mbarrier once its copies so far are done. Without noinc it is not counted beforehand.
void Machine::arrive_later(Warp& warp, const Ins& ins, int lane, u32 mask) {
  Copy copy{};
  copy.kind = Copy::arrival;
  copy.ins = &ins;
  copy.issuer = &warp;
  copy.lane = lane;
  copy.group = warp.element_open[lane];
  const Operand& place = ins.arg(0);
  copy.cta = copy.barrier_cta =
      &cta_of(warp, static_cast<u32>(read<u64>(warp, place, mask)[lane] + static_cast<u64>(place.offset)), true, &copy.barrier);
  MBarrier& barrier = barrier_at(*copy.barrier_cta, copy.barrier);
  observe_barrier(warp, *copy.barrier_cta, barrier, false);
  if (!(ins.flags & NOINC)) ++barrier.pending;
  issue(std::move(copy));
}

void Machine::deposit(Warp& warp, const Ins& ins, int lane, u32 mask) {
  Copy copy{};
  copy.kind = Copy::deposit;
  copy.ins = &ins;
  copy.issuer = &warp;
  copy.lane = lane;
  copy.reduction = ins.mode;
  copy.type = ins.type;
  u32 size = static_cast<u32>(bytes_of(ins.type)), count = static_cast<u32>(ins.size(ARG_VALUE));
  copy.bytes = size * count;
  auto address = [&](int arg) {
    return static_cast<u32>(read<u64>(warp, ins.arg(arg), mask)[lane] + static_cast<u64>(ins.arg(arg).offset));
  };
  copy.cta = &cta_of(warp, address(ARG_ADDRESS), false, &copy.shared);
  copy.barrier_cta = &cta_of(warp, address(ARG_BARRIER), false, &copy.barrier);
  if (copy.cta != copy.barrier_cta)
    throw Problem("barrier misuse", "the address and the mbarrier lie in different CTAs of the cluster");
  if (copy.shared % copy.bytes)
    throw Problem("misaligned", "an access of " + std::to_string(copy.bytes) + " bytes at shared memory offset " +
                                    std::to_string(copy.shared - SHARED_BASE));
  copy.read = true;
  for (u32 e = 0; e < count; ++e) {
    u64 value = read<u64>(warp, ins.arg(ARG_VALUE, static_cast<int>(e)), mask)[lane];
    const u8* bytes = reinterpret_cast<const u8*>(&value);
    copy.snapshot.insert(copy.snapshot.end(), bytes, bytes + size);
  }
  issue(std::move(copy));
}

bool Machine::elements(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  bool all = ins.op == Op::element_wait_all;
  auto each = [&](auto f) {
    for (lane_ = 0; lane_ < LANES; ++lane_)
      if (mask >> lane_ & 1) (this->*f)(warp, ins, lane_, mask);
    lane_ = -1;
  };
  switch (ins.op) {
    case Op::element_copy: each(&Machine::copy_element); break;
    case Op::element_arrive: each(&Machine::arrive_later); break;
    case Op::st_async:
    case Op::red_async: each(&Machine::deposit); break;
    case Op::element_commit:
      for (int l = 0; l < LANES; ++l) warp.element_open[l] += mask >> l & 1;
      break;
    case Op::element_wait:
    case Op::element_wait_all:
      if (all && group.wait_closed != group.pc) {
        for (int l = 0; l < LANES; ++l) warp.element_open[l] += mask >> l & 1;
        group.wait_closed = group.pc;
      }
      group.wanted = all ? 0 : static_cast<u32>(ins.arg(0).value);
      group.parity = 0;
      if (!copies_done(warp, group, Copy::element)) {
        group.wait = Wait::elements;
        return true;
      }
      group.wait_closed = -1;
      for (int l = 0; l < LANES; ++l)
        if ((mask >> l & 1) && warp.element_actor[l] && warp.element_open[l] >= group.wanted)
          warp.now.see(warp.element_actor[l], static_cast<u32>(warp.element_open[l]) - group.wanted);
      warp.shot.reset();
      break;
    default: return false;
  }
  ++group.pc;
  return true;
}

}  // namespace sim
