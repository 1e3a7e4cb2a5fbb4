// f32 and f64 arithmetic in every rounding, minima and maxima, and the sign; f16 and bf16 are in halves.cpp.
#include <cfenv>

#include "forms.h"
#include "numbers.h"

namespace sim {
namespace {

#include "lanes.h"

template <class T>
T taken(const Ins& ins, T x) {
  if constexpr (std::is_same_v<T, float>)
    return ins.flags & FTZ ? flushed(x) : x;
  else
    return x;
}

// Of f32: flushed and clamped to 0 … 1 where the instruction says so. f64 keeps the payload of a NaN that it is given: of
// b, else c, else a.
template <class T>
T settled(const Ins& ins, T value, T a, T b = 0, T c = 0) {
  if constexpr (std::is_same_v<T, float>) {
    value = ins.flags & FTZ ? flushed(value) : value;
    return ins.flags & SAT ? (value > 0 ? (value < 1 ? value : 1) : 0) : value;
  } else {
    if (value == value) return value;
    for (T operand : {b, c, a})
      if (operand != operand) return bits_to<T>(bits_to<u64>(operand) | 1ull << 51);
    return bits_to<T>(0xFFF8000000000000ull);
  }
}

// As in common.h: a product is flushed by its value before it is rounded.
template <class T>
T judged(const Ins& ins, T value, double unrounded) {
  bool small = std::is_same_v<T, float> && ins.flags & FTZ && std::fabs(unrounded) < SMALLEST_NORMAL;
  return small ? std::copysign(T(0), value) : value;
}

template <class T>
T product(const Ins& ins, T a, T b) {
  return judged(ins, a * b, static_cast<double>(a) * static_cast<double>(b));
}

template <class T>
T fused(const Ins& ins, T a, T b, T c) {
  return judged(ins, std::fma(a, b, c), std::fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c)));
}

// clang-format off
#define SIM_ROUNDED(name, parameters, value, ...) \
  struct name { template <class T> static T of parameters { return settled(i, T(value), __VA_ARGS__); } };

SIM_ROUNDED(Plus, (const Ins& i, T a, T b), taken(i, a) + taken(i, b), a, b)
SIM_ROUNDED(Minus, (const Ins& i, T a, T b), taken(i, a) - taken(i, b), a, b)
SIM_ROUNDED(Times, (const Ins& i, T a, T b), product(i, taken(i, a), taken(i, b)), a, b)
SIM_ROUNDED(Over, (const Ins& i, T a, T b), taken(i, a) / taken(i, b), b, a)
SIM_ROUNDED(Fused, (const Ins& i, T a, T b, T c), fused(i, taken(i, a), taken(i, b), taken(i, c)), a, b, c)
SIM_ROUNDED(Inverse, (const Ins& i, T a), 1 / taken(i, a), a)
SIM_ROUNDED(Root, (const Ins& i, T a), std::sqrt(taken(i, a)), a)
// clang-format on

// Runs a form in the rounding of its instruction. What it computes lies in memory before and after, where the compiler
// has to assume that fesetround sees it.
template <auto F>
struct Directed {
  static constexpr Form plain = form<F>();
  static void run(const Ins& ins, const Lanes& lanes) {
    int mode = ins.rnd == Word::rz ? FE_TOWARDZERO : ins.rnd == Word::rm ? FE_DOWNWARD : FE_UPWARD;
    std::fesetround(mode);
    plain.run(ins, lanes);
    std::fesetround(FE_TONEAREST);
  }
  static Form directed() {
    Form found = plain;
    found.run = run;
    return found;
  }
};

template <class F, class T>
Form rounded(const Ins& ins) {
  constexpr auto function = &F::template of<T>;
  return ins.rnd == Word::none || ins.rnd == Word::rn ? form<function>() : Directed<function>::directed();
}

template <class F>
Form in_any_rounding(const Ins& ins) {
  if (ins.type == Type::f64) return ins.flags ? Form() : rounded<F, double>(ins);
  if (ins.type == Type::f32) return ins.flags & ~(FTZ | SAT) ? Form() : rounded<F, float>(ins);
  return {};
}

// The larger magnitude, with the product of the signs; or the larger value.
template <bool maximum>
float extreme(const Ins& ins, float a, float b) {
  a = taken(ins, a);
  b = taken(ins, b);
  if (ins.flags & NAN_WINS && (a != a || b != b)) return f32_of(CANONICAL_NAN);
  u32 sign = (bits_to<u32>(a) ^ bits_to<u32>(b)) & 0x80000000;
  if (ins.flags & XORSIGN_ABS) {
    a = std::fabs(a);
    b = std::fabs(b);
  }
  float value = maximum ? larger(a, b) : -larger(-a, -b);
  if (value != value || !(ins.flags & XORSIGN_ABS)) return value;
  return f32_of(bits_to<u32>(value) | sign);
}

template <bool maximum>
double extreme64(const Ins& ins, double a, double b) {
  if (a != a || b != b) return a == a ? a : b == b ? b : settled<double>(ins, a, a, b);
  if (a == b) return std::signbit(a) == maximum ? b : a;
  return (a > b) == maximum ? a : b;
}

float absolute(const Ins& ins, float a) { return std::fabs(taken(ins, a)); }
float negated(const Ins& ins, float a) { return -taken(ins, a); }
double absolute64(const Ins& ins, double a) { return a == a ? std::fabs(a) : settled<double>(ins, a, a); }
double negated64(const Ins& ins, double a) { return a == a ? -a : settled<double>(ins, a, a); }

template <bool maximum>
Form extreme_form(const Ins& ins) {
  if (ins.type == Type::f64) return ins.flags ? Form() : form<&extreme64<maximum>>();
  bool known = ins.type == Type::f32 && !(ins.flags & ~(FTZ | NAN_WINS | XORSIGN_ABS));
  return known ? form<&extreme<maximum>>() : Form();
}

}  // namespace

Form float_form(const Ins& ins) {
  bool single = ins.type == Type::f32;
  if (!single && ins.type != Type::f64) return {};
  switch (ins.op) {
    case Op::add_float: return in_any_rounding<Plus>(ins);
    case Op::sub_float: return in_any_rounding<Minus>(ins);
    case Op::mul_float: return in_any_rounding<Times>(ins);
    case Op::fma: return in_any_rounding<Fused>(ins);
    case Op::div_float: return in_any_rounding<Over>(ins);
    case Op::rcp: return in_any_rounding<Inverse>(ins);
    case Op::sqrt: return in_any_rounding<Root>(ins);
    case Op::min_float: return extreme_form<false>(ins);
    case Op::max_float: return extreme_form<true>(ins);
    case Op::abs_float: return single ? form<&absolute>() : form<&absolute64>();
    case Op::neg_float: return single ? form<&negated>() : form<&negated64>();
    default: return {};
  }
}

}  // namespace sim
