// f16 and bf16 arithmetic, one value or two in a word: exact in double or rounded there to odd, then rounded once.
#include "forms.h"
#include "numbers.h"

namespace sim {
namespace {

#include "lanes.h"

struct F16Values {
  static double value(u16 bits) { return f16_of(bits); }
  static constexpr FloatFormat format = F16;
  static constexpr double least = 0x1p-14;  // that is not subnormal
};

struct BF16Values {
  static double value(u16 bits) { return bf16_of(bits); }
  static constexpr FloatFormat format = BF16;
  static constexpr double least = 0x1p-126;
};

template <class H>
u16 flushed_half(u16 bits) {
  return bits & static_cast<u16>(H::format.infinity()) ? bits : bits & 0x8000;
}

template <class H>
bool is_nan(u16 bits) {
  return (bits & 0x7FFF) > H::format.infinity();
}

// a + b, rounded to odd: a later rounding to few bits is then the only one that counts.
double odd_sum(double a, double b) {
  double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  double part = sum - a, error = (a - (sum - part)) + (b - part);
  u64 bits = bits_to<u64>(sum);
  if (error == 0 || bits & 1) return sum;
  return bits_to<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

template <class H>
u16 settled(const Ins& ins, double value) {
  u16 bits = static_cast<u16>(packed(number_of(bits_to<u64>(value), F64), H::format, Word::rn));
  if (ins.flags & FTZ && std::fabs(value) < H::least) bits &= 0x8000;  // judged before it is rounded
  bool nan = is_nan<H>(bits);
  if (ins.flags & SAT && (nan || bits & 0x8000)) return 0;
  if (ins.flags & SAT && H::value(bits) > 1) return static_cast<u16>(H::format.bias() << H::format.mantissa);
  if (ins.flags & RELU && !nan && bits & 0x8000) return 0;
  return bits;
}

template <class H>
double taken(const Ins& ins, u16 bits) {
  return H::value(ins.flags & FTZ ? flushed_half<H>(bits) : bits);
}

struct Plus {
  template <class H> static u16 of(const Ins& i, u16 a, u16 b) {
    return settled<H>(i, odd_sum(taken<H>(i, a), taken<H>(i, b)));
  }
};
struct Minus {
  template <class H> static u16 of(const Ins& i, u16 a, u16 b) {
    return settled<H>(i, odd_sum(taken<H>(i, a), -taken<H>(i, b)));
  }
};
struct Times {
  template <class H> static u16 of(const Ins& i, u16 a, u16 b) {
    return settled<H>(i, taken<H>(i, a) * taken<H>(i, b));
  }
};
struct Fused {
  template <class H> static u16 of(const Ins& i, u16 a, u16 b, u16 c) {
    return settled<H>(i, odd_sum(taken<H>(i, a) * taken<H>(i, b), taken<H>(i, c)));
  }
};
// The NaN with which a tensor copy fills what is out of bounds makes the result zero.
struct FusedOob {
  template <class H> static u16 of(const Ins& i, u16 a, u16 b, u16 c) {
    return a == OUT_OF_BOUNDS_NAN || b == OUT_OF_BOUNDS_NAN ? 0 : Fused::of<H>(i, a, b, c);
  }
};

template <class H, bool maximum>
u16 extreme_of(const Ins& ins, u16 a, u16 b) {
  if (ins.flags & FTZ) {
    a = flushed_half<H>(a);
    b = flushed_half<H>(b);
  }
  u16 sign = (a ^ b) & 0x8000;
  bool a_nan = is_nan<H>(a), b_nan = is_nan<H>(b);
  if ((a_nan && b_nan) || (ins.flags & NAN_WINS && (a_nan || b_nan))) return 0x7FFF;
  if (ins.flags & XORSIGN_ABS) {
    a &= 0x7FFF;
    b &= 0x7FFF;
  }
  auto ordered = [](u16 x) { return x & 0x8000 ? 0x7FFF - x : x + 0; };
  u16 value = a_nan ? b : b_nan ? a : (ordered(a) > ordered(b)) == maximum ? a : b;
  return ins.flags & XORSIGN_ABS ? value | sign : value;
}

struct Smaller {
  template <class H> static u16 of(const Ins& i, u16 a, u16 b) { return extreme_of<H, false>(i, a, b); }
};
struct Larger {
  template <class H> static u16 of(const Ins& i, u16 a, u16 b) { return extreme_of<H, true>(i, a, b); }
};
struct Absolute {
  template <class H> static u16 of(const Ins& i, u16 a) {
    return is_nan<H>(a) ? 0x7FFF : (i.flags & FTZ ? flushed_half<H>(a) : a) & 0x7FFF;
  }
};
struct Negated {
  template <class H> static u16 of(const Ins& i, u16 a) {
    return is_nan<H>(a) ? 0x7FFF : (i.flags & FTZ ? flushed_half<H>(a) : a) ^ 0x8000;
  }
};

// A function of halves, on both halves of words.
template <auto F>
struct Both;

template <class... A, u16 (*F)(const Ins&, A...)>
struct Both<F> {
  template <class>
  using Word32 = u32;
  static u32 of(const Ins& ins, Word32<A>... words) {
    u32 low = F(ins, static_cast<u16>(words)...), high = F(ins, static_cast<u16>(words >> 16)...);
    return high << 16 | low;
  }
};

template <class F>
Form halves(const Ins& ins, u32 flags) {
  if (ins.flags & ~flags) return {};
  switch (ins.type) {
    case Type::f16: return form<&F::template of<F16Values>>();
    case Type::bf16: return form<&F::template of<BF16Values>>();
    case Type::f16x2: return form<&Both<&F::template of<F16Values>>::of>();
    case Type::bf16x2: return form<&Both<&F::template of<BF16Values>>::of>();
    default: return {};
  }
}

}  // namespace

Form half_form(const Ins& ins) {
  constexpr u32 SUM = FTZ | SAT | RELU, EXTREME = FTZ | NAN_WINS | XORSIGN_ABS;
  switch (ins.op) {
    case Op::add_float: return halves<Plus>(ins, SUM);
    case Op::sub_float: return halves<Minus>(ins, SUM);
    case Op::mul_float: return halves<Times>(ins, SUM);
    case Op::fma: return halves<Fused>(ins, SUM);
    case Op::fma_oob: return halves<FusedOob>(ins, SUM);
    case Op::min_float: return halves<Smaller>(ins, EXTREME);
    case Op::max_float: return halves<Larger>(ins, EXTREME);
    case Op::abs_float: return halves<Absolute>(ins, FTZ);
    case Op::neg_float: return halves<Negated>(ins, FTZ);
    default: return {};
  }
}

}  // namespace sim
