// Approximations, in the steps that ptxas makes of them around one call of the special-function unit.
#include "forms.h"
#include "numbers.h"
#include "special_unit.h"

namespace sim {
namespace {

#include "lanes.h"

constexpr float LARGE = 0x1p126f;

template <u32 (*UNIT)(u32)>
float unit(float x) {
  return f32_of(UNIT(bits_to<u32>(x)));
}

// Without ftz, subnormal operands are scaled into the unit's range and its result back.
template <u32 (*UNIT)(u32)>
float scaled(const Ins& ins, float x, float back) {
  bool small = !(ins.flags & FTZ) && std::fabs(x) < SMALLEST_NORMAL;
  return small ? unit<UNIT>(x * 0x1p24f) * back : unit<UNIT>(x);
}

float rcp(const Ins& ins, float x) {
  if (ins.flags & FTZ) return unit<unit_rcp>(x);
  float scale = std::fabs(x) < SMALLEST_NORMAL ? 0x1p24f : std::fabs(x) > LARGE ? 0.25f : 1;
  return unit<unit_rcp>(x * scale) * scale;
}

float rsqrt(const Ins& ins, float x) { return scaled<unit_rsqrt>(ins, x, 0x1p12f); }
float sqrt(const Ins& ins, float x) { return scaled<unit_sqrt>(ins, x, 0x1p-12f); }

float ex2(const Ins& ins, float x) {
  if (ins.flags & FTZ || !(x < -126)) return unit<unit_ex2>(x);
  float half = unit<unit_ex2>(x * 0.5f);
  return half * half;
}

float lg2(const Ins& ins, float x) {
  bool small = !(ins.flags & FTZ) && std::fabs(x) < SMALLEST_NORMAL;
  return small ? unit<unit_lg2>(x * 0x1p24f) - 24 : unit<unit_lg2>(x);
}

// The unit takes turns: the product with 1 / (2 pi) is rounded toward zero.
float turns(float x) {
  double product = static_cast<double>(x) * static_cast<double>(0.159154937f);
  float value = static_cast<float>(product);
  bool away = std::fabs(static_cast<double>(value)) > std::fabs(product);
  return away ? f32_of(bits_to<u32>(value) - 1) : value;
}

float sin(float x) { return unit<unit_sin>(turns(x)); }
float cos(float x) { return unit<unit_cos>(turns(x)); }
float tanh(float x) { return unit<unit_tanh>(x); }

float divided(const Ins& ins, float a, float b) {
  bool ftz = ins.flags & FTZ, full = ins.op == Op::div_full;
  auto product = [&](float x, float y) { return ftz ? flushed(flushed(x) * flushed(y)) : x * y; };
  float scale = full && std::fabs(b) > LARGE ? 0.25f : !ftz && std::fabs(b) < SMALLEST_NORMAL ? 0x1p24f : 1;
  if (scale != 1) {
    a = product(a, scale);
    b = product(b, scale);
  }
  return product(unit<unit_rcp>(b), a);
}

// Of narrow types, widened before and truncated after; what is too large becomes infinite.
template <u32 (*UNIT)(u32)>
u16 half(const Ins& ins, u16 a) {
  bool f16 = ins.type == Type::f16 || ins.type == Type::f16x2;
  u32 bits = UNIT(bits_to<u32>(f16 ? f16_of(a) : bf16_of(a)));
  if (!f16) return static_cast<u16>(bits >> 16);
  float value = f32_of(bits);
  return f16_bits(value, std::fabs(value) < 0x1p16f);
}

template <u32 (*UNIT)(u32)>
u32 both(const Ins& ins, u32 a) {
  return static_cast<u32>(half<UNIT>(ins, static_cast<u16>(a >> 16))) << 16 | half<UNIT>(ins, static_cast<u16>(a));
}

template <u32 (*UNIT)(u32)>
Form narrow(Type type) {
  switch (type) {
    case Type::f16:
    case Type::bf16: return form<&half<UNIT>>();
    case Type::f16x2:
    case Type::bf16x2: return form<&both<UNIT>>();
    default: return {};
  }
}

// Of f64 with ftz the upper word is worked out from the upper word, and the lower one is zero.
template <u32 (*UNIT)(u32)>
u64 upper(u64 a) {
  return static_cast<u64>(UNIT(static_cast<u32>(a >> 32))) << 32;
}

// Two steps of Newton's method from there.
double refined_rsqrt(double x) {
  double start = bits_to<double>(upper<unit_rsqrt64>(bits_to<u64>(x)));
  double error = std::fma(x, -(start * start), 1.0);
  return std::fma(std::fma(error, 0.375, 0.5), start * error, start);
}

double rsqrt64(double x) {
  constexpr double smallest = 0x1p-1022;
  if (x != x) return bits_to<double>(bits_to<u64>(x) | 1ull << 51);
  if (x == 0) return 1 / x;
  if (x < 0) return bits_to<double>(0xFFF8000000000000ull);
  if (std::isinf(x)) return 0;
  return x < smallest ? refined_rsqrt(x * 0x1p54) * 0x1p27 : refined_rsqrt(x);
}

}  // namespace

Form approximate_form(const Ins& ins) {
  if (ins.flags & ~FTZ) return {};
  bool wide = ins.type == Type::f64, single = ins.type == Type::f32;
  switch (ins.op) {
    case Op::div_approx:
    case Op::div_full: return form<&divided>();
    case Op::rcp_approx: return wide ? form<&upper<unit_rcp64>>() : form<&rcp>();
    case Op::rsqrt_approx:
      return !wide ? form<&rsqrt>() : ins.flags & FTZ ? form<&upper<unit_rsqrt64>>() : form<&rsqrt64>();
    case Op::sqrt_approx: return form<&sqrt>();
    case Op::ex2_approx: return single ? form<&ex2>() : narrow<unit_ex2>(ins.type);
    case Op::lg2_approx: return form<&lg2>();
    case Op::sin_approx: return form<&sin>();
    case Op::cos_approx: return form<&cos>();
    case Op::tanh_approx: return single ? form<&tanh>() : narrow<unit_tanh>(ins.type);
    default: return {};
  }
}

}  // namespace sim
