// One instruction of one warp: control flow, what the lanes of a warp do together, and who does the rest.
#include "machine.h"
#include "registers.h"

namespace sim {

u32 Machine::uniform(Warp& warp, const Operand& operand, u32 mask) {
  const u32* lanes = read<u32>(warp, operand, mask);
  u32 value = lanes[__builtin_ctz(mask)];
  for (int l = 0; l < LANES; ++l)
    if ((mask >> l & 1) && lanes[l] != value)
      throw Problem("not uniform", "an operand that the warp shares differs between lanes");
  return value;
}

void Machine::execute(Warp& warp, Group& group) {
  const Ins& ins = program_.code[group.pc];
  current_ = &ins;
  ++warp.clock;
  ++executed;
  u32 mask = group.mask;
  if (ins.guard >= 0) {
    mask &= predicate(warp, ins.guard, ins.guard_not, mask);
    if (!mask) {
      ++group.pc;
      return;
    }
  }
  if (ins.form.run) {
    compute(warp, ins, mask);
    ++group.pc;
  } else if (mask != ALL && is_collective(ins.op) && !whole(warp, group, mask)) {
    // it waits for the others
  } else if (ins.op == Op::bra) {
    branch(warp, group, ins, mask);
  } else if (memory(warp, ins, mask)) {
    ++group.pc;
  } else if (control(warp, group, ins, mask) || synchronise(warp, group, ins, mask) ||
             asynchronous(warp, group, ins, mask) || matrix_multiply(warp, group, ins, mask)) {
    // these move the program counter themselves, and only when they do not have to wait
  } else {
    throw Problem("unsupported", "the machine does not have this form of the instruction");
  }
}

void Machine::branch(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  if (mask == group.mask) {
    group.pc = ins.n;
    return;
  }
  Group taken = group;
  taken.pc = ins.n;
  taken.mask = mask;
  group.mask &= ~mask;
  ++group.pc;
  warp.groups.push_back(taken);  // `group` may be gone from here on
}

void Machine::leave(Warp& warp, Group& group, u32 mask) {
  warp.alive &= ~mask;
  group.mask &= ~mask;
  if (group.mask)
    ++group.pc;
  else
    warp.groups.erase(warp.groups.begin() + (&group - warp.groups.data()));
  Cluster& cluster = *warp.cta->cluster;  // who is gone is not waited for, and its arrival is not counted any more
  for (int l = 0; l < LANES; ++l)
    cluster.arrived -= (mask >> l & 1) && warp.cluster_arrived[l] && warp.cluster_phase[l] == cluster.phase;
  complete_cluster(cluster);
}

// Whether all lanes that the instruction names stand here; otherwise the group waits for them.
bool Machine::together(Warp& warp, Group& group, u32 wanted, const char* what) {
  if ((group.mask & wanted) == wanted) return true;
  if ((warp.alive & wanted) != wanted)
    throw Problem("warp divergence", std::string(what) + " names lanes that have exited");
  group.wait = Wait::warp;
  group.wanted = wanted;
  return false;
}

// Whether all lanes of the warp are here for an instruction that they execute together. Lanes that a branch led
// elsewhere are waited for.
bool Machine::whole(Warp& warp, Group& group, u32 mask) {
  if (mask != group.mask || warp.alive != ALL)
    throw Problem("warp divergence", "an instruction of the whole warp is executed by part of it");
  return together(warp, group, ALL, "an instruction of the whole warp");
}

bool Machine::control(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  switch (ins.op) {
    case Op::ret:
    case Op::exit: leave(warp, group, mask); return true;
    case Op::trap: throw Problem("trap", "the kernel executed trap");
    case Op::nanosleep:
    case Op::griddepcontrol: break;
    case Op::shfl:
      if (!together(warp, group, uniform(warp, ins.arg(4), mask), "shfl.sync")) return true;
      shuffle(warp, ins, mask);
      break;
    case Op::vote:
    case Op::vote_ballot:
    case Op::match_any:
    case Op::match_all:
    case Op::redux: {
      u32 wanted = uniform(warp, ins.arg(2), mask);
      if (!together(warp, group, wanted, "a warp-wide instruction")) return true;
      if (ins.op == Op::redux)
        redux(warp, ins, wanted);
      else if (ins.op == Op::match_any || ins.op == Op::match_all)
        match(warp, ins, wanted);
      else
        vote(warp, ins, wanted);
      break;
    }
    case Op::elect: {
      u32 wanted = uniform(warp, ins.arg(1), mask);
      if (!together(warp, group, wanted, "elect.sync")) return true;
      u32 leader = static_cast<u32>(__builtin_ctz(wanted)), lanes[LANES];
      for (u32& lane : lanes) lane = leader;
      write<u32>(warp, ins.arg(0, 0), lanes, mask);
      write_pred(warp, ins.arg(0, 1), 1u << leader, mask);
      break;
    }
    case Op::activemask: {
      u32 lanes[LANES];
      for (u32& lane : lanes) lane = group.mask;
      write<u32>(warp, ins.arg(0), lanes, mask);
      break;
    }
    case Op::bar_warp_sync: {
      u32 wanted = uniform(warp, ins.arg(0), mask), present = 0;
      if (!(wanted >> __builtin_ctz(mask) & 1))
        throw Problem("warp divergence", "bar.warp.sync by a lane outside its mask");
      for (const Group& other : warp.groups)
        if (&other == &group || other.wait == Wait::warp_barrier) present |= other.mask;
      if ((present & wanted & warp.alive) != (wanted & warp.alive)) {
        group.wait = Wait::warp_barrier;
        group.wanted = wanted;
        return true;
      }
      for (Group& other : warp.groups)
        if (&other != &group && other.wait == Wait::warp_barrier) {
          other.wait = Wait::none;
          ++other.pc;
        }
      meet_lanes(warp, wanted);
      break;
    }
    default: return false;
  }
  ++group.pc;
  return true;
}

void Machine::shuffle(Warp& warp, const Ins& ins, u32 mask) {
  const u32 *a = read<u32>(warp, ins.arg(1), mask), *b = read<u32>(warp, ins.arg(2), mask);
  const u32* c = read<u32>(warp, ins.arg(3), mask);
  u32 out[LANES], inside = 0;
  for (int l = 0; l < LANES; ++l) {
    int clamp = c[l] & 31, segment = c[l] >> 8 & 31, distance = static_cast<int>(b[l] & 31), from = l;
    int highest = (l & segment) | (clamp & ~segment), lowest = l & segment;
    bool ok = false;
    switch (ins.mode) {
      case Word::up: from = l - distance, ok = from >= highest; break;
      case Word::down: from = l + distance, ok = from <= highest; break;
      case Word::bfly: from = l ^ distance, ok = from <= highest; break;
      default: from = lowest | (distance & ~segment), ok = from <= highest; break;
    }
    if (!ok) from = l;
    if ((mask >> l & 1) && !(mask >> from & 1))
      throw Problem("warp divergence", "shfl.sync reads a lane that does not take part");
    out[l] = a[from];
    inside |= static_cast<u32>(ok) << l;
  }
  write<u32>(warp, ins.arg(0, 0), out, mask);
  if (ins.size(0) > 1) write_pred(warp, ins.arg(0, 1), inside, mask);
}

void Machine::vote(Warp& warp, const Ins& ins, u32 mask) {
  u32 set = read_pred(warp, ins.arg(1), mask) & mask;
  if (ins.op == Op::vote_ballot) {
    u32 lanes[LANES];
    for (u32& lane : lanes) lane = set;
    write<u32>(warp, ins.arg(0), lanes, mask);
    return;
  }
  bool holds = ins.mode == Word::all ? set == mask : ins.mode == Word::any ? set != 0 : set == 0 || set == mask;
  write_pred(warp, ins.arg(0), holds ? ALL : 0, mask);
}

// For each lane those that hold the same value; or all of them, if they all do.
void Machine::match(Warp& warp, const Ins& ins, u32 mask) {
  const u64* values = read<u64>(warp, ins.arg(1), mask);
  u32 same[LANES] = {}, all = 0;
  for (int l = 0; l < LANES; ++l)
    for (int other = 0; other < LANES; ++other)
      if (mask >> other & 1 && values[other] == values[l]) same[l] |= 1u << other;
  if (ins.op == Op::match_all) {
    all = same[__builtin_ctz(mask)] == mask ? ALL : 0;
    for (u32& lanes : same) lanes = mask & all;
    write_pred(warp, ins.arg(0, 1), all, mask);
  }
  write<u32>(warp, ins.arg(0, 0), same, mask);
}

void Machine::redux(Warp& warp, const Ins& ins, u32 mask) {
  const u32* a = read<u32>(warp, ins.arg(1), mask);
  bool first = true;
  u32 total = 0;
  for (int l = 0; l < LANES; ++l) {
    if (!(mask >> l & 1)) continue;
    u32 x = a[l];
    bool less = is_signed(ins.type) ? static_cast<s32>(x) < static_cast<s32>(total) : x < total;
    if (first)
      total = x;
    else
      switch (ins.mode) {
        case Word::add: total += x; break;
        case Word::and_: total &= x; break;
        case Word::or_: total |= x; break;
        case Word::xor_: total ^= x; break;
        case Word::min: total = less ? x : total; break;
        default: total = less ? total : x; break;
      }
    first = false;
  }
  u32 lanes[LANES];
  for (u32& lane : lanes) lane = total;
  write<u32>(warp, ins.arg(0), lanes, mask);
}

}  // namespace sim
