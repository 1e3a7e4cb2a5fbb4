// Approximations, in the steps that ptxas makes of them around one call of the special-function unit. The unit's 1/x and
// 2^x are exact (special.h); its other functions are correctly rounded, which lies within their stated errors.
#include "forms.h"
#include "special.h"

namespace sim {
namespace {

#include "lanes.h"

constexpr float SMALLEST_NORMAL = 1.17549435e-38f, LARGE = 8.50705917e37f;  // 2^-126, 2^126

// The unit: subnormal operands and results are zeros.
float unit_rcp(float x) {
  x = flushed(x);
  if (x != x || x == 0 || std::isinf(x)) return 1 / x;
  return f32_of(reciprocal(bits_to<u32>(x)));
}

float unit_ex2(float x) {
  x = flushed(x);
  if (x != x) return x;
  if (x >= 128) return std::numeric_limits<float>::infinity();
  if (x < -126) return 0;
  return f32_of(power_of_two(static_cast<s64>(std::floor(static_cast<double>(x) * 0x1p23))));
}

double inverse_root(double x) { return 1 / std::sqrt(x); }
double inverse(double x) { return 1 / x; }

template <double (*F)(double)>
float unit(float x) {
  return flushed(static_cast<float>(F(flushed(x))));
}

// Without ftz, subnormal operands are scaled into the unit's range and its result back.
template <float (*F)(float)>
float scaled(const Ins& ins, float x, float back) {
  bool small = !(ins.flags & FTZ) && std::fabs(x) < SMALLEST_NORMAL;
  return small ? F(x * 0x1p24f) * back : F(x);
}

float rcp(const Ins& ins, float x) {
  if (ins.flags & FTZ) return unit_rcp(x);
  float scale = std::fabs(x) < SMALLEST_NORMAL ? 0x1p24f : std::fabs(x) > LARGE ? 0.25f : 1;
  return unit_rcp(x * scale) * scale;
}

float rsqrt(const Ins& ins, float x) { return scaled<unit<inverse_root>>(ins, x, 0x1p12f); }
float sqrt(const Ins& ins, float x) { return scaled<unit<::sqrt>>(ins, x, 0x1p-12f); }

float ex2(const Ins& ins, float x) {
  if (ins.flags & FTZ || !(x < -126)) return unit_ex2(x);
  float half = unit_ex2(x * 0.5f);
  return half * half;
}

float lg2(const Ins& ins, float x) {
  bool small = !(ins.flags & FTZ) && std::fabs(x) < SMALLEST_NORMAL;
  return small ? unit<::log2>(x * 0x1p24f) - 24 : unit<::log2>(x);
}

float sin(const Ins& ins, float x) { return static_cast<float>(std::sin(ins.flags & FTZ ? flushed(x) : x)); }
float cos(const Ins& ins, float x) { return static_cast<float>(std::cos(ins.flags & FTZ ? flushed(x) : x)); }
float tanh(const Ins&, float x) { return static_cast<float>(std::tanh(static_cast<double>(x))); }

float divided(const Ins& ins, float a, float b) {
  bool ftz = ins.flags & FTZ, full = ins.op == Op::div_full;
  auto product = [&](float x, float y) { return ftz ? flushed(flushed(x) * flushed(y)) : x * y; };
  float scale = full && std::fabs(b) > LARGE ? 0.25f : !ftz && std::fabs(b) < SMALLEST_NORMAL ? 0x1p24f : 1;
  if (scale != 1) {
    a = product(a, scale);
    b = product(b, scale);
  }
  return product(unit_rcp(b), a);
}

// Of narrow types, in double and rounded once.
template <double (*F)(double)>
u16 half(const Ins& ins, u16 a) {
  bool f16 = ins.type == Type::f16 || ins.type == Type::f16x2;
  float x = f16 ? f16_of(a) : bf16_of(a);
  double value = F(ins.flags & FTZ ? flushed(x) : x);
  return static_cast<u16>(packed(number_of(bits_to<u64>(value), F64), f16 ? F16 : BF16, Word::rn));
}

template <double (*F)(double)>
u32 both(const Ins& ins, u32 a) {
  return static_cast<u32>(half<F>(ins, static_cast<u16>(a >> 16))) << 16 | half<F>(ins, static_cast<u16>(a));
}

template <double (*F)(double)>
Form narrow(Type type) {
  switch (type) {
    case Type::f16:
    case Type::bf16: return form<&half<F>>();
    case Type::f16x2:
    case Type::bf16x2: return form<&both<F>>();
    default: return {};
  }
}

// Of f64 with ftz the upper word is worked out from the upper word, and the lower one is zero.
template <double (*F)(double)>
u64 upper(const Ins& ins, u64 a) {
  bool whole = ins.op == Op::rsqrt_approx && !(ins.flags & FTZ);
  double value = F(bits_to<double>(whole ? a : a & ~0xFFFFFFFFull));
  if (value != value) return 0x7FFFFFFF00000000ull;
  return whole ? bits_to<u64>(value) : bits_to<u64>(value) & ~0xFFFFFFFFull;
}

}  // namespace

Form approximate_form(const Ins& ins) {
  if (ins.flags & ~FTZ) return {};
  bool wide = ins.type == Type::f64, single = ins.type == Type::f32;
  switch (ins.op) {
    case Op::div_approx:
    case Op::div_full: return form<&divided>();
    case Op::rcp_approx: return wide ? form<&upper<inverse>>() : form<&rcp>();
    case Op::rsqrt_approx: return wide ? form<&upper<inverse_root>>() : form<&rsqrt>();
    case Op::sqrt_approx: return form<&sqrt>();
    case Op::ex2_approx: return single ? form<&ex2>() : narrow<::exp2>(ins.type);
    case Op::lg2_approx: return form<&lg2>();
    case Op::sin_approx: return form<&sin>();
    case Op::cos_approx: return form<&cos>();
    case Op::tanh_approx: return single ? form<&tanh>() : narrow<::tanh>(ins.type);
    default: return {};
  }
}

}  // namespace sim
