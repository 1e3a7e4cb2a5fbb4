// Tensor maps that a kernel edits: tensormap.replace, and the fences of the tensor-map proxy.
#include <cstring>

#include "machine.h"
#include "registers.h"

namespace sim {
namespace {

enum : int { ARG_MAP, ARG_ORDINAL, ARG_VALUE };  // of tensormap.replace
enum : int { ARG_TO, ARG_FROM };                 // of tensormap.cp_fenceproxy

}  // namespace

// A map in global memory that this launch has changed is used after the fences of both sides.
void Machine::check_edit(const Warp& warp, u64 address) const {
  auto edit = map_edits_.find(address);
  if (edit == map_edits_.end()) return;
  auto known = warp.maps_known.find(address);
  const char* missing = !edit->second.released                                                 ? "release"
                        : known == warp.maps_known.end() || known->second < edit->second.version ? "acquire"
                                                                                                 : nullptr;
  if (!missing) return;
  Problem problem("missing fence.proxy.tensormap",
                  std::string("a tensor map that was edited is used, and no fence.proxy.tensormap::generic.") + missing +
                      " lies between");
  problem.others.emplace_back(edit->second.line, "the edit");
  throw problem;
}

void Machine::replace_in_map(Warp& warp, const Ins& ins, u32 mask) {
  const Operand& place = ins.arg(ARG_MAP);
  const u64* base = read<u64>(warp, place, mask);
  const u64* value = read<u64>(warp, ins.arg(ARG_VALUE), mask);
  for (lane_ = 0; lane_ < LANES; ++lane_) {
    if (!(mask >> lane_ & 1)) continue;
    u64 address = base[lane_] + static_cast<u64>(place.offset);
    if (is_shared(ins.space)) address = static_cast<u32>(address);
    locate_byte(warp, ins, address, MAP_BYTES, false);
    u8* bytes = locate_byte(warp, ins, address, MAP_BYTES, true);
    replace_field(bytes, ins.mode, static_cast<u32>(ins.arg(ARG_ORDINAL).value), value[lane_]);
    if (ins.space == Word::global) map_edits_[address] = {++map_version_, warp.actor, false, ins.line};
  }
  lane_ = -1;
}

// The whole warp copies a map from shared to global memory and releases it.
void Machine::publish_map(Warp& warp, const Ins& ins) {
  const Operand &to = ins.arg(ARG_TO), &from = ins.arg(ARG_FROM);
  u64 target = read<u64>(warp, to, ALL)[0] + static_cast<u64>(to.offset);
  u32 offset, source = static_cast<u32>(read<u64>(warp, from, ALL)[0] + static_cast<u64>(from.offset));
  if (target % MAP_BYTES || source % MAP_BYTES)
    throw Problem("misaligned", "tensormap.cp_fenceproxy needs addresses that are multiples of 128 bytes");
  Cta& cta = cta_of(warp, source, true, &offset);
  const u8* bytes = shared(cta, offset, MAP_BYTES, false);
  observe(warp, cta, offset, MAP_BYTES, false, ins);
  u8* place = global(target, MAP_BYTES, "tensormap.cp_fenceproxy");
  observe_global(warp, target, MAP_BYTES, true, ins);
  std::memcpy(place, bytes, MAP_BYTES);
  map_edits_[target] = {++map_version_, warp.actor, true, ins.line};
}

bool Machine::edit_map(Warp& warp, Group& group, const Ins& ins, u32 mask) {
  switch (ins.op) {
    case Op::tensormap_replace: replace_in_map(warp, ins, mask); break;
    case Op::tensormap_publish: publish_map(warp, ins); break;
    case Op::tensormap_release:
      for (auto& [address, edit] : map_edits_) edit.released |= edit.actor == warp.actor;
      break;
    case Op::tensormap_acquire: {
      const u64* address = read<u64>(warp, ins.arg(0), mask);
      for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) warp.maps_known[address[l] + static_cast<u64>(ins.arg(0).offset)] = map_version_;
      break;
    }
    default: return false;
  }
  ++group.pc;
  return true;
}

}  // namespace sim
