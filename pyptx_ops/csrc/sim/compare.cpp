// Comparisons with a second predicate or two results, set, slct, testp, copysign.
#include "forms.h"
#include "numbers.h"

namespace sim {
namespace {

#include "lanes.h"

u32 joined(Word join, u32 bits, const Lanes& lanes) {
  if (join == Word::none) return bits;
  u32 other = *static_cast<const u32*>(lanes.in[2]);
  return join == Word::and_ ? bits & other : join == Word::or_ ? bits | other : bits ^ other;
}

// The values of one comparison, by type; `half` is which one of a packed pair.
template <Type type>
auto value(const Ins& ins, const void* lanes, int l, int half) {
  bool ftz = ins.flags & FTZ;
  u32 word = type == Type::f64 ? 0 : get<u32>(lanes, l);
  u16 part = static_cast<u16>(word >> (16 * half));
  if constexpr (type == Type::f64)
    return get<double>(lanes, l);
  else if constexpr (type == Type::f32)
    return ftz ? flushed(f32_of(word)) : f32_of(word);
  else if constexpr (type == Type::f16)
    return f16_of(ftz && !(part & 0x7C00) ? part & 0x8000 : part);
  else
    return bf16_of(part);
}

template <Type type>
u32 compared(const Ins& ins, const Lanes& lanes, int half = 0) {
  using T = decltype(value<type>(ins, nullptr, 0, 0));
  return where_holds<T>(ins.cmp, [&](int operand, int l) { return value<type>(ins, lanes.in[operand], l, half); });
}

template <class T>
u32 compared_as(const Ins& ins, const Lanes& lanes) {
  return where_holds<T>(ins.cmp, [&](int operand, int l) { return get<T>(lanes.in[operand], l); });
}

u32 compare(const Ins& ins, const Lanes& lanes) {
  switch (ins.op == Op::set ? ins.src : ins.type) {
    case Type::b16:
    case Type::u16: return compared_as<u16>(ins, lanes);
    case Type::s16: return compared_as<s16>(ins, lanes);
    case Type::b32:
    case Type::u32: return compared_as<u32>(ins, lanes);
    case Type::s32: return compared_as<s32>(ins, lanes);
    case Type::b64:
    case Type::u64: return compared_as<u64>(ins, lanes);
    case Type::s64: return compared_as<s64>(ins, lanes);
    case Type::f32: return compared<Type::f32>(ins, lanes);
    case Type::f64: return compared<Type::f64>(ins, lanes);
    case Type::f16:
    case Type::f16x2: return compared<Type::f16>(ins, lanes);
    default: return compared<Type::bf16>(ins, lanes);
  }
}

void setp(const Ins& ins, const Lanes& lanes) {
  u32 bits = compare(ins, lanes), second = ~bits;
  if (ins.type == Type::f16x2) second = compared<Type::f16>(ins, lanes, 1);
  if (ins.type == Type::bf16x2) second = compared<Type::bf16>(ins, lanes, 1);
  bits = joined(ins.join, bits, lanes);  // both, before either is written: the third operand may be one of the results
  second = joined(ins.join, second, lanes);
  *static_cast<u32*>(lanes.out[0]) = bits;
  if (ins.form.outs > 1) *static_cast<u32*>(lanes.out[1]) = second;
}

void set(const Ins& ins, const Lanes& lanes) {
  u32 bits = joined(ins.join, compare(ins, lanes), lanes), yes = ins.type == Type::f32 ? 0x3F800000 : ALL;
  for (int l = 0; l < LANES; ++l) static_cast<u32*>(lanes.out[0])[l] = bits >> l & 1 ? yes : 0;
}

template <class C>
struct Slct {
  template <class T>
  static T of(const Ins& ins, T a, T b, C c) {
    if constexpr (std::is_same_v<C, float>) c = ins.flags & FTZ ? flushed(c) : c;
    return c >= 0 ? a : b;
  }
};

template <class T>
bool tested(const Ins& ins, T a) {
  int kind = std::fpclassify(a);
  switch (ins.mode) {
    case Word::finite: return kind != FP_NAN && kind != FP_INFINITE;
    case Word::infinite: return kind == FP_INFINITE;
    case Word::number: return kind != FP_NAN;
    case Word::notanumber: return kind == FP_NAN;
    case Word::normal: return kind == FP_NORMAL || kind == FP_ZERO;
    default: return kind == FP_SUBNORMAL;
  }
}

template <class T>
T copied(T a, T b) {
  constexpr T sign = T(1) << (8 * sizeof(T) - 1);
  return (a & sign) | (b & ~sign);
}

Kind kind_of_type(Type type) { return bytes_of(type) == 8 ? Kind::wide : Kind::word; }

}  // namespace

Form compare_form(const Ins& ins) {
  int joins = ins.join != Word::none;
  if (ins.flags & ~FTZ) return {};
  switch (ins.op) {
    case Op::setp:
    case Op::setp_dual: {
      Kind kind = kind_of_type(ins.type);
      return {setp, 2 + joins, ins.op == Op::setp ? 1 : 2, {kind, kind, Kind::pred}, {Kind::pred, Kind::pred}};
    }
    case Op::set: {
      Kind kind = kind_of_type(ins.src);
      return {set, 2 + joins, 1, {kind, kind, Kind::pred}, {Kind::word}};
    }
    case Op::slct: return ins.src == Type::f32 ? words<Slct<float>>(ins.type) : words<Slct<s32>>(ins.type);
    case Op::testp: return ins.type == Type::f64 ? form<&tested<double>>() : form<&tested<float>>();
    case Op::copysign: return ins.type == Type::f64 ? form<&copied<u64>>() : form<&copied<u32>>();
    default: return {};
  }
}

}  // namespace sim
