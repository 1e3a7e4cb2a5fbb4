// The forms that kernels spend their time in. This file is compiled once for every processor and once for AVX2 and FMA,
// with the same results; SIM_PATH names the copy.
namespace sim {
namespace SIM_PATH {

#include "lanes.h"

// Unsigned arithmetic wraps, so signed integers go through it; 32 bits at least, so that nothing is promoted to int.
template <class T>
using Bits = std::make_unsigned_t<std::conditional_t<sizeof(T) == 8, s64, s32>>;

// A product is flushed by its value before it is rounded to f32: in double it is exact.
template <bool ftz>
float judged(float value, double unrounded) {
  return ftz && std::fabs(unrounded) < SMALLEST_NORMAL ? std::copysign(0.0f, value) : value;
}

template <bool ftz>
float product(float a, float b) {
  return judged<ftz>(a * b, static_cast<double>(a) * static_cast<double>(b));
}

template <bool ftz>
float fused(float a, float b, float c) {
  double unrounded = ftz ? std::fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c)) : 0;
  return judged<ftz>(std::fma(a, b, c), unrounded);
}

// clang-format off
#define SIM_LANE(name, parameters, value) \
  struct name { template <class T> static T of parameters { return static_cast<T>(value); } };

SIM_LANE(Add, (T a, T b), Bits<T>(a) + Bits<T>(b))
SIM_LANE(Sub, (T a, T b), Bits<T>(a) - Bits<T>(b))
SIM_LANE(MulLo, (T a, T b), Bits<T>(a) * Bits<T>(b))
SIM_LANE(MadLo, (T a, T b, T c), Bits<T>(a) * Bits<T>(b) + Bits<T>(c))
SIM_LANE(Min, (T a, T b), a < b ? a : b)
SIM_LANE(Max, (T a, T b), a > b ? a : b)
SIM_LANE(Neg, (T a), Bits<T>(0) - Bits<T>(a))
SIM_LANE(Abs, (T a), a < 0 ? Bits<T>(0) - Bits<T>(a) : Bits<T>(a))
SIM_LANE(And, (T a, T b), a & b)
SIM_LANE(Or, (T a, T b), a | b)
SIM_LANE(Xor, (T a, T b), a ^ b)
SIM_LANE(Not, (T a), ~a)
SIM_LANE(Move, (T a), a)
SIM_LANE(Select, (T a, T b, bool c), c ? a : b)
SIM_LANE(Shl, (T a, u32 by), by < 8 * sizeof(T) ? Bits<T>(a) << by : 0)
SIM_LANE(Shr, (T a, u32 by), by < 8 * sizeof(T) ? a >> by : a < 0 ? -1 : 0)

#define SIM_FLOAT(name, parameters, value) \
  template <bool ftz> struct name { static float of parameters { return settled<ftz>(value); } };

template <bool ftz> float taken(float x) { return ftz ? flushed(x) : x; }
template <bool ftz> float settled(float x) { return ftz ? flushed(x) : x; }

SIM_FLOAT(AddFloat, (float a, float b), taken<ftz>(a) + taken<ftz>(b))
SIM_FLOAT(SubFloat, (float a, float b), taken<ftz>(a) - taken<ftz>(b))
SIM_FLOAT(MulFloat, (float a, float b), product<ftz>(taken<ftz>(a), taken<ftz>(b)))
SIM_FLOAT(Fma, (float a, float b, float c), fused<ftz>(taken<ftz>(a), taken<ftz>(b), taken<ftz>(c)))
SIM_FLOAT(MaxFloat, (float a, float b), larger(taken<ftz>(a), taken<ftz>(b)))
SIM_FLOAT(MinFloat, (float a, float b), -larger(-taken<ftz>(a), -taken<ftz>(b)))
// clang-format on

template <class To, class From>
struct Wide {
  static To mul(From a, From b) { return static_cast<To>(static_cast<To>(a) * static_cast<To>(b)); }
  static To mad(From a, From b, To c) {
    using U = Bits<To>;
    return static_cast<To>(static_cast<U>(mul(a, b)) + static_cast<U>(c));
  }
};

template <class T>
struct Compare {
  static void run(const Ins& ins, const Lanes& lanes) {
    *static_cast<u32*>(lanes.out[0]) =
        where_holds<T>(ins.cmp, [&](int operand, int l) { return get<T>(lanes.in[operand], l); });
  }
  static constexpr Form form() { return {run, 2, 1, {kind_of<T>(), kind_of<T>()}, {Kind::pred}}; }
};

inline Form setp_form(Type type) {
  switch (type) {
    case Type::u16:
    case Type::b16: return Compare<u16>::form();
    case Type::s16: return Compare<s16>::form();
    case Type::u32:
    case Type::b32: return Compare<u32>::form();
    case Type::s32: return Compare<s32>::form();
    case Type::u64:
    case Type::b64: return Compare<u64>::form();
    case Type::s64: return Compare<s64>::form();
    case Type::f32: return Compare<float>::form();
    default: return {};
  }
}

// Two registers to one and back.
struct Pairs {
  static u64 pack(u32 low, u32 high) { return static_cast<u64>(high) << 32 | low; }
  static u32 pack_half(u16 low, u16 high) { return static_cast<u32>(high) << 16 | low; }
  template <class T>
  static void unpack(const Ins&, const Lanes& lanes) {
    constexpr int bits = 4 * sizeof(T);
    u32 *low = static_cast<u32*>(lanes.out[0]), *high = static_cast<u32*>(lanes.out[1]);
    for (int l = 0; l < LANES; ++l) {
      T whole = get<T>(lanes.in[0], l);
      low[l] = static_cast<u32>(whole & ((T(1) << bits) - 1));
      high[l] = static_cast<u32>(whole >> bits);
    }
  }
};

template <template <bool> class F>
Form rounded_float(const Ins& ins) {
  return ins.flags & FTZ ? form<&F<true>::of>() : form<&F<false>::of>();
}

inline u16 narrow_bf16(float a) { return bf16_bits(a); }
inline u32 narrow_bf16x2(float high, float low) { return static_cast<u32>(bf16_bits(high)) << 16 | bf16_bits(low); }

inline Form f32_form(const Ins& ins) {
  if (ins.type != Type::f32 || (ins.rnd != Word::none && ins.rnd != Word::rn) || ins.flags & ~FTZ) return {};
  switch (ins.op) {
    case Op::add_float: return rounded_float<AddFloat>(ins);
    case Op::sub_float: return rounded_float<SubFloat>(ins);
    case Op::mul_float: return rounded_float<MulFloat>(ins);
    case Op::fma: return rounded_float<Fma>(ins);
    case Op::max_float: return rounded_float<MaxFloat>(ins);
    case Op::min_float: return rounded_float<MinFloat>(ins);
    default: return {};
  }
}

Form common_form(const Ins& ins) {
  if (Form found = f32_form(ins); found.run) return found;
  if (ins.flags) return {};
  Type type = ins.type;
  switch (ins.op) {
    case Op::add: return integers<Add>(type);
    case Op::sub: return integers<Sub>(type);
    case Op::mul_lo: return integers<MulLo>(type);
    case Op::mad_lo: return integers<MadLo>(type);
    case Op::mul_wide:
      return type == Type::u32   ? form<&Wide<u64, u32>::mul>()
             : type == Type::s32 ? form<&Wide<s64, s32>::mul>()
             : type == Type::u16 ? form<&Wide<u32, u16>::mul>()
                                 : form<&Wide<s32, s16>::mul>();
    case Op::mad_wide:
      return type == Type::u32   ? form<&Wide<u64, u32>::mad>()
             : type == Type::s32 ? form<&Wide<s64, s32>::mad>()
             : type == Type::u16 ? form<&Wide<u32, u16>::mad>()
                                 : form<&Wide<s32, s16>::mad>();
    case Op::min: return integers<Min>(type);
    case Op::max: return integers<Max>(type);
    case Op::neg: return integers<Neg>(type);
    case Op::abs: return integers<Abs>(type);
    case Op::and_: return type == Type::pred ? Form() : words<And>(type);
    case Op::or_: return type == Type::pred ? Form() : words<Or>(type);
    case Op::xor_: return type == Type::pred ? Form() : words<Xor>(type);
    case Op::not_: return type == Type::pred ? Form() : words<Not>(type);
    case Op::mov: return type == Type::pred ? Form() : words<Move>(type);
    case Op::selp: return words<Select>(type);
    case Op::shl: return words<Shl>(type);
    case Op::shr: return integers<Shr>(type);
    case Op::setp: return ins.join == Word::none ? setp_form(type) : Form();
    case Op::mov_pack:
      if (ins.size(1) != 2) return {};
      return bytes_of(type) == 8 ? form<&Pairs::pack>() : form<&Pairs::pack_half>();
    case Op::mov_unpack:
      if (ins.size(0) != 2) return {};
      return bytes_of(type) == 8 ? Form{Pairs::unpack<u64>, 1, 2, {Kind::wide}, {Kind::word, Kind::word}}
                                 : Form{Pairs::unpack<u32>, 1, 2, {Kind::word}, {Kind::word, Kind::word}};
    case Op::cvt_float:
      return type == Type::bf16 && ins.src == Type::f32 && ins.rnd == Word::rn ? form<&narrow_bf16>() : Form();
    case Op::cvt_pack:
      return type == Type::bf16x2 && ins.rnd == Word::rn ? form<&narrow_bf16x2>() : Form();
    default: return {};
  }
}

}  // namespace SIM_PATH
}  // namespace sim
