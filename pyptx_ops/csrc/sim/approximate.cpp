// Approximations: correctly rounded, which lies within their stated errors.
#include "forms.h"
#include "numbers.h"

namespace sim {
namespace {

#include "lanes.h"

double inverse(double x) { return 1 / x; }
double inverse_root(double x) { return 1 / std::sqrt(x); }

// In double, then rounded to the type.
template <double (*F)(double)>
float single(const Ins& ins, float a) {
  float value = static_cast<float>(F(ins.flags & FTZ ? flushed(a) : a));
  return ins.flags & FTZ ? flushed(value) : value;
}

template <double (*F)(double)>
u16 half(const Ins& ins, u16 a) {
  bool f16 = ins.type == Type::f16 || ins.type == Type::f16x2;
  float x = f16 ? f16_of(a) : bf16_of(a);
  const FloatFormat& format = f16 ? F16 : BF16;
  double value = F(!f16 && ins.flags & FTZ ? flushed(x) : x);
  return static_cast<u16>(packed(number_of(bits_to<u64>(value), F64), format, Word::rn));
}

template <double (*F)(double)>
u32 both(const Ins& ins, u32 a) {
  return static_cast<u32>(half<F>(ins, static_cast<u16>(a >> 16))) << 16 | half<F>(ins, static_cast<u16>(a));
}

template <double (*F)(double)>
Form in_any_type(Type type) {
  switch (type) {
    case Type::f32: return form<&single<F>>();
    case Type::f16:
    case Type::bf16: return form<&half<F>>();
    case Type::f16x2:
    case Type::bf16x2: return form<&both<F>>();
    default: return {};
  }
}

// Of f64 the upper word is worked out from the upper word, and the lower one is zero.
template <double (*F)(double)>
u64 upper(const Ins&, u64 a) {
  double value = F(bits_to<double>(a & ~0xFFFFFFFFull));
  if (value != value) return 0x7FFFFFFF00000000ull;
  u64 bits = bits_to<u64>(value);
  return bits & ~0xFFFFFFFFull;
}

float quotient(const Ins& ins, float a, float b) {
  if (ins.flags & FTZ) {
    a = flushed(a);
    b = flushed(b);
  }
  float value = a / b;
  return ins.flags & FTZ ? flushed(value) : value;
}

}  // namespace

Form approximate_form(const Ins& ins) {
  if (ins.flags & ~FTZ) return {};
  bool wide = ins.type == Type::f64;
  switch (ins.op) {
    case Op::div_approx:
    case Op::div_full: return form<&quotient>();
    case Op::rcp_approx: return wide ? form<&upper<inverse>>() : in_any_type<inverse>(ins.type);
    case Op::rsqrt_approx: return wide ? form<&upper<inverse_root>>() : in_any_type<inverse_root>(ins.type);
    case Op::sqrt_approx: return in_any_type<::sqrt>(ins.type);
    case Op::ex2_approx: return in_any_type<::exp2>(ins.type);
    case Op::lg2_approx: return in_any_type<::log2>(ins.type);
    case Op::sin_approx: return in_any_type<::sin>(ins.type);
    case Op::cos_approx: return in_any_type<::cos>(ins.type);
    case Op::tanh_approx: return in_any_type<::tanh>(ins.type);
    default: return {};
  }
}

}  // namespace sim
