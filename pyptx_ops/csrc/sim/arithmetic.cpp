// What a lane computes by itself: the form of an instruction is found when the kernel is loaded, and run here.
#include <cstring>

#include "forms.h"
#include "machine.h"

namespace sim {
namespace {

bool processor_has_vectors() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
  return false;
#endif
}

bool vectors_wanted = true;

}  // namespace

bool vectors() { return vectors_wanted && processor_has_vectors(); }
void use_vectors(bool wanted) { vectors_wanted = wanted; }

bool is_arithmetic(Op op) {
  switch (op) {
#define X(name, text) case Op::name:
    SIM_ARITHMETIC(X)
#undef X
    return true;
    default: return false;
  }
}

Form form_of(const Ins& ins) {
  using Source = Form (*)(const Ins&);
  const Source sources[] = {vectors() ? avx2::common_form : portable::common_form, integer_form, bit_form, carry_form,
                            float_form, half_form, compare_form, approximate_form, convert_form};
  for (Source source : sources)
    if (Form found = source(ins); found.run) return found;
  return {};
}

namespace {

Place place_of(Operand& operand, Kind kind, const Program& program) {
  Place place;
  if (operand.kind == Operand::literal) {
    if (kind == Kind::pred) operand.lanes32->assign(LANES, operand.value ? ALL : 0);
    place.literal = kind == Kind::wide ? static_cast<const void*>(operand.lanes64->data()) : operand.lanes32->data();
  } else if (operand.kind == Operand::reg) {
    const Slot& slot = program.slots[static_cast<size_t>(operand.slot)];
    if (slot.pred != (kind == Kind::pred)) throw Problem("program", "a predicate and a word change places");
    place.slot = operand.slot;
    place.offset = slot.offset;
    place.negated = operand.negated;
    place.fits = slot.pred ? !operand.negated : slot.wide == (kind == Kind::wide);
  }
  return place;
}

}  // namespace

void settle(Ins& ins, const Program& program) {
  ins.form = form_of(ins);
  if (!ins.form.run) throw Problem("program", "the simulator does not have this form of the instruction");
  int outs = ins.size(0), given = static_cast<int>(ins.operands.size()) - outs;
  if (outs != ins.form.outs || given != ins.form.ins) throw Problem("program", "another number of operands is wanted");
  for (int i = 0; i < outs; ++i) ins.out[i] = place_of(ins.operands[static_cast<size_t>(i)], ins.form.out[i], program);
  for (int i = 0; i < given; ++i)
    ins.in[i] = place_of(ins.operands[static_cast<size_t>(outs + i)], ins.form.in[i], program);
}

namespace {

// The lanes of a register of another width, or of a negated predicate.
template <class S>
const void* converted(const u8* place, const Place& in, Kind kind, S* scratch) {
  if (kind == Kind::pred) {
    u32 bits;
    std::memcpy(&bits, place, sizeof bits);
    scratch[0] = in.negated ? ~bits : bits;
  } else if constexpr (sizeof(S) == 8) {
    for (int l = 0; l < LANES; ++l) scratch[l] = reinterpret_cast<const u32*>(place)[l];
  } else {
    for (int l = 0; l < LANES; ++l) scratch[l] = static_cast<u32>(reinterpret_cast<const u64*>(place)[l]);
  }
  return scratch;
}

// Into a register of any width.
void store(u8* place, bool wide, Kind kind, const void* lanes, u32 mask) {
  auto into = [&](auto* target, auto* source, auto as) {
    using S = decltype(as);
    for (int l = 0; l < LANES; ++l)
      if (mask >> l & 1) target[l] = static_cast<std::remove_reference_t<decltype(*target)>>(static_cast<S>(source[l]));
  };
  const u32* words = static_cast<const u32*>(lanes);
  const u64* pairs = static_cast<const u64*>(lanes);
  u32* narrow = reinterpret_cast<u32*>(place);
  u64* whole = reinterpret_cast<u64*>(place);
  if (kind == Kind::pred)
    *narrow = (*narrow & ~mask) | (*words & mask);
  else if (kind == Kind::wide)
    wide ? into(whole, pairs, u64()) : into(narrow, pairs, u64());
  else if (kind == Kind::signed_word)
    wide ? into(whole, words, s32()) : into(narrow, words, u32());
  else
    wide ? into(whole, words, u32()) : into(narrow, words, u32());
}

}  // namespace

void Machine::compute(Warp& warp, const Ins& ins, u32 mask) {
  const Form& form = ins.form;
  alignas(64) u64 scratch[6][LANES], results[4][LANES];
  Lanes lanes;
  u8* file = warp.file.data();
  for (int i = 0; i < form.ins; ++i) {
    const Place& in = ins.in[i];
    lanes.in[i] = in.literal;
    if (in.literal) continue;
    check_read(warp, in.slot, mask);
    lanes.in[i] = file + in.offset;
    if (in.fits) continue;
    const u8* place = file + in.offset;
    lanes.in[i] = form.in[i] == Kind::wide ? converted(place, in, form.in[i], scratch[i])
                                           : converted(place, in, form.in[i], reinterpret_cast<u32*>(scratch[i]));
  }
  // Straight into the registers where every lane takes part: a lane's operands are read before its result is written.
  bool direct = mask == ALL;
  for (int i = 0; i < form.outs; ++i) {
    const Place& out = ins.out[i];
    if (out.slot >= 0) check_write(warp, out.slot, mask);
    lanes.out[i] = direct && out.fits ? static_cast<void*>(file + out.offset) : results[i];
  }
  form.run(ins, lanes);
  for (int i = 0; i < form.outs; ++i) {
    const Place& out = ins.out[i];
    if (lanes.out[i] == results[i] && out.slot >= 0)
      store(file + out.offset, program_.slots[static_cast<size_t>(out.slot)].wide, form.out[i], results[i], mask);
  }
}

}  // namespace sim
