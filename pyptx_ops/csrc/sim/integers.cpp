// Integer arithmetic beyond common.h: high products, division, saturation, pairs of 16 bits, dot products, carries.
#include "forms.h"
#include "numbers.h"

namespace sim {
namespace {

#include "lanes.h"

// A type of twice the width.
template <class T>
using Twice = std::conditional_t<
    sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
    std::conditional_t<std::is_signed_v<T>, s64, u64>>;

template <class T>
constexpr int bits_of = 8 * sizeof(T);

template <class T>
T high(T a, T b) {
  return static_cast<T>((static_cast<Twice<T>>(a) * static_cast<Twice<T>>(b)) >> bits_of<T>);
}

template <class T>
T sum(T a, T b) {
  return static_cast<T>(static_cast<u64>(a) + static_cast<u64>(b));
}

s32 saturated(s64 value) { return value > 0x7FFFFFFF ? 0x7FFFFFFF : value < -0x80000000ll ? -0x80000000ll : value; }

template <class T>
T divided(T a, T b) {
  if (b == 0) return static_cast<T>(~T(0));
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - static_cast<u64>(a));
  return static_cast<T>(a / b);
}

// clang-format off
#define SIM_LANE(name, parameters, value) \
  struct name { template <class T> static T of parameters { return static_cast<T>(value); } };

SIM_LANE(MulHi, (T a, T b), high(a, b))
SIM_LANE(MadHi, (T a, T b, T c), sum(high(a, b), c))
SIM_LANE(Div, (T a, T b), divided(a, b))
SIM_LANE(Rem, (T a, T b), b == 0 ? T(~T(0)) : std::is_signed_v<T> && b == static_cast<T>(-1) ? 0 : a % b)
SIM_LANE(Sad, (T a, T b, T c), static_cast<u64>(c) + (a > b ? static_cast<u64>(a) - static_cast<u64>(b)
                                                             : static_cast<u64>(b) - static_cast<u64>(a)))
// clang-format on

s32 add_sat(s32 a, s32 b) { return saturated(static_cast<s64>(a) + b); }
s32 sub_sat(s32 a, s32 b) { return saturated(static_cast<s64>(a) - b); }
s32 mad_hi_sat(s32 a, s32 b, s32 c) { return saturated(static_cast<s64>(high(a, b)) + c); }

// The low 24 bits of a word, extended.
s64 low24(s32 a) { return static_cast<s32>(static_cast<u32>(a) << 8) >> 8; }
u64 low24(u32 a) { return a & 0xFFFFFF; }

template <class T>
T mul24(const Ins& ins, T a, T b) {
  return static_cast<T>((low24(a) * low24(b)) >> (ins.mode == Word::hi ? 16 : 0));
}

template <class T>
T mad24(const Ins& ins, T a, T b, T c) {
  T product = mul24(ins, a, b);
  if (ins.flags & SAT) return static_cast<T>(saturated(static_cast<s64>(product) + static_cast<s64>(c)));
  return sum(product, c);
}

// a has four bytes, b four: their products are added to c. dp2a: two halves of a, and two bytes of b.
template <class A, class B, int elements>
u32 dot(const Ins& ins, u32 a, u32 b, u32 c) {
  constexpr int width = 32 / elements;
  if (elements == 2 && ins.mode == Word::hi) b >>= 16;
  for (int i = 0; i < elements; ++i)
    c += static_cast<u32>(static_cast<s64>(static_cast<A>(a >> (width * i))) * static_cast<B>(b >> (8 * i)));
  return c;
}

template <class T, bool maximum, bool relu>
u32 extreme_pair(u32 a, u32 b) {
  u32 result = 0;
  for (int shift : {0, 16}) {
    T x = static_cast<T>(a >> shift), y = static_cast<T>(b >> shift), r = (x < y) == maximum ? y : x;
    result |= static_cast<u32>(static_cast<u16>(relu && r < 0 ? 0 : r)) << shift;
  }
  return result;
}

template <bool maximum>
s32 extreme_relu(s32 a, s32 b) {
  s32 r = (a < b) == maximum ? b : a;
  return r < 0 ? 0 : r;
}

template <bool maximum>
Form extreme_form(const Ins& ins) {
  bool relu = ins.flags & RELU;
  if (ins.flags & ~RELU) return {};
  switch (ins.type) {
    case Type::u16x2: return form<&extreme_pair<u16, maximum, false>>();
    case Type::s16x2:
      return relu ? form<&extreme_pair<s16, maximum, true>>() : form<&extreme_pair<s16, maximum, false>>();
    case Type::s32: return relu ? form<&extreme_relu<maximum>>() : Form();
    default: return {};
  }
}

Form dot_form(const Ins& ins) {
  bool a = ins.type == Type::s32, b = ins.src == Type::s32;
  if (ins.op == Op::dp4a)
    return a ? b ? form<&dot<int8_t, int8_t, 4>>() : form<&dot<int8_t, u8, 4>>()
             : b ? form<&dot<u8, int8_t, 4>>() : form<&dot<u8, u8, 4>>();
  return a ? b ? form<&dot<s16, int8_t, 2>>() : form<&dot<s16, u8, 2>>()
           : b ? form<&dot<u16, int8_t, 2>>() : form<&dot<u16, u8, 2>>();
}

// Sums with a carry in, a carry out or both. The loader appends the carry, a predicate, to what is read and written.
// A difference is a + ~b + 1: its carry is set where nothing is borrowed.
template <class T>
struct Carrying {
  static void run(const Ins& ins, const Lanes& lanes) {
    bool subtracts = ins.op == Op::sub_cc || ins.op == Op::subc;
    bool multiplies = ins.op == Op::madc || ins.op == Op::mad_lo || ins.op == Op::mad_hi;
    int last = ins.form.ins - 1;
    bool carries = ins.form.in[last] == Kind::pred, high_half = ins.op == Op::mad_hi || ins.mode == Word::hi;
    u32 out = 0;
    for (int l = 0; l < LANES; ++l) {
      T a = get<T>(lanes.in[0], l), b = get<T>(lanes.in[1], l);
      T carry = carries ? get<bool>(lanes.in[last], l) : subtracts;
      if (multiplies) {
        a = high_half ? Carrying::product_high(ins.type, a, b) : static_cast<T>(a * b);
        b = get<T>(lanes.in[2], l);
      }
      if (subtracts) b = static_cast<T>(~b);
      T result;
      bool over = __builtin_add_overflow(a, b, &result) | __builtin_add_overflow(result, carry, &result);
      static_cast<Lane<T>*>(lanes.out[0])[l] = result;
      out |= static_cast<u32>(over) << l;
    }
    if (ins.form.outs > 1) *static_cast<u32*>(lanes.out[1]) = out;
  }

  static T product_high(Type type, T a, T b) {
    using S = std::make_signed_t<T>;
    return is_signed(type) ? static_cast<T>(high(static_cast<S>(a), static_cast<S>(b))) : high(a, b);
  }
};

}  // namespace

Form carry_form(const Ins& ins) {
  bool reads = ins.op == Op::addc || ins.op == Op::subc || ins.op == Op::madc;
  bool writes = ins.flags & CARRY || ins.op == Op::add_cc || ins.op == Op::sub_cc;
  bool multiplies = ins.op == Op::madc || ins.op == Op::mad_lo || ins.op == Op::mad_hi;
  bool wide = bytes_of(ins.type) == 8;
  if ((!reads && !writes) || ins.flags & ~CARRY) return {};
  Form found;
  found.run = wide ? Carrying<u64>::run : Carrying<u32>::run;
  Kind kind = wide ? Kind::wide : Kind::word;
  found.ins = multiplies ? 3 : 2;
  for (int i = 0; i < found.ins; ++i) found.in[i] = kind;
  if (reads) found.in[found.ins++] = Kind::pred;
  found.out[0] = kind;
  found.out[1] = Kind::pred;
  found.outs = writes ? 2 : 1;
  return found;
}

Form integer_form(const Ins& ins) {
  bool saturates = ins.flags & SAT;
  switch (ins.op) {
    case Op::add: return ins.type == Type::s32 && ins.flags == SAT ? form<&add_sat>() : Form();
    case Op::sub: return ins.type == Type::s32 && ins.flags == SAT ? form<&sub_sat>() : Form();
    case Op::mul_hi: return integers<MulHi>(ins.type);
    case Op::mad_hi: return ins.flags & CARRY ? Form() : saturates ? form<&mad_hi_sat>() : integers<MadHi>(ins.type);
    case Op::mul24: return ins.type == Type::s32 ? form<&mul24<s32>>() : form<&mul24<u32>>();
    case Op::mad24: return ins.type == Type::s32 ? form<&mad24<s32>>() : form<&mad24<u32>>();
    case Op::sad: return integers<Sad>(ins.type);
    case Op::div: return integers<Div>(ins.type);
    case Op::rem: return integers<Rem>(ins.type);
    case Op::dp4a:
    case Op::dp2a: return dot_form(ins);
    case Op::min: return extreme_form<false>(ins);
    case Op::max: return extreme_form<true>(ins);
    default: return {};
  }
}

}  // namespace sim
