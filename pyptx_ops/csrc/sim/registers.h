// Access of instructions to the registers of a warp.
#pragma once

#include "machine.h"

namespace sim {

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

inline u32 Machine::predicate(Warp& warp, int slot, bool negated, u32 mask) {
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
