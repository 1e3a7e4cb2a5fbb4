// Conversions between integers and floating formats, rounding to integral values, and packing.
#include "forms.h"
#include "numbers.h"

namespace sim {
namespace {

#include "lanes.h"

const FloatFormat* format_of(Type type) {
  switch (type) {
    case Type::f64: return &F64;
    case Type::f32: return &F32;
    case Type::tf32: return &TF32;
    case Type::f16:
    case Type::f16x2: return &F16;
    case Type::bf16:
    case Type::bf16x2: return &BF16;
    case Type::e4m3x2: return &E4M3;
    case Type::e5m2x2: return &E5M2;
    default: return nullptr;
  }
}

Number source(const Ins& ins, u64 bits, const FloatFormat& format) {
  Number n = number_of(bits, format);
  bool subnormal = n.kind == Number::finite && n.exponent < 1 - format.bias();
  bool flushes = ins.flags & FTZ && &format == &F32;
  if (flushes && subnormal && ins.type != Type::f16) n.kind = Number::zero;
  return flushes && n.kind == Number::nan ? number_of(F32.quiet, F32) : n;
}

// The payload of a NaN passes through conversions from and to f64.
bool keeps_payload(const Ins& ins) { return ins.src == Type::f64 || ins.type == Type::f64; }

u64 quieted(const Number& nan, const FloatFormat& format) {
  u64 quiet = 1ull << (format.mantissa - 1), sign = static_cast<u64>(nan.negative) << format.top();
  return sign | format.infinity() | quiet | nan.significand >> (64 - format.mantissa);
}

u64 result(const Ins& ins, Number n, const FloatFormat& format) {
  if (ins.flags & SAT) {
    if (n.kind == Number::nan || n.negative) n = {};
    if (n.kind == Number::infinite || (n.kind == Number::finite && n.exponent >= 0)) n = number_of(false, 1);
  }
  if (n.kind == Number::nan && keeps_payload(ins)) return quieted(n, format);
  if (ins.flags & RELU && n.negative && n.kind != Number::nan) n = {};
  u64 bits = packed(n, format, ins.rnd, ins.flags & SATFINITE);
  if (ins.flags & FTZ && &format == &F32 && !(bits & 0x7F800000)) bits &= 0x80000000;
  return &format == &TF32 ? bits << 13 : bits;
}

// Bits of an integer of a type, extended to 64.
u64 extended(u64 value, Type type) {
  int unused = 64 - 8 * bytes_of(type);
  return is_signed(type) ? static_cast<u64>(static_cast<s64>(value << unused) >> unused) : value << unused >> unused;
}

// The nearest value of an integer type.
u64 clamped(bool negative, u64 magnitude, Type type) {
  int bits = 8 * bytes_of(type);
  u64 most = is_signed(type) ? (1ull << (bits - 1)) - 1 : ~0ull >> (64 - bits), least = is_signed(type) ? most + 1 : 0;
  if (negative) return 0 - (magnitude > least ? least : magnitude);
  return magnitude > most ? most : magnitude;
}

u64 int_to_int(const Ins& ins, u64 x) {
  x = extended(x, ins.src);
  if (!(ins.flags & SAT)) return extended(x, ins.type);
  bool negative = is_signed(ins.src) && static_cast<s64>(x) < 0;
  return clamped(negative, negative ? 0 - x : x, ins.type);
}

u64 int_to_float(const Ins& ins, u64 x) {
  x = extended(x, ins.src);
  bool negative = is_signed(ins.src) && static_cast<s64>(x) < 0;
  return result(ins, number_of(negative, negative ? 0 - x : x), *format_of(ins.type));
}

u64 float_to_int(const Ins& ins, u64 x) {
  Number n = source(ins, x, *format_of(ins.src));
  int bits = 8 * bytes_of(ins.type);
  if (n.kind == Number::nan) return ins.src == Type::f64 || bits == 64 ? extended(1ull << (bits - 1), ins.type) : 0;
  return clamped(n.negative, magnitude_of(n, ins.rnd), ins.type);
}

u32 shifted(u32 x) { return x << 16; }

u64 float_to_float(const Ins& ins, u64 x) {
  return result(ins, source(ins, x, *format_of(ins.src)), *format_of(ins.type));
}

// Ties away from zero, by adding half a unit to the word; what lies beyond the finite values goes down a unit of tf32.
u32 to_tf32_away(const Ins& ins, u32 x) {
  constexpr u32 half = 1u << 12, unit = 1u << 13, infinity = 0x7F800000, magnitude = 0x7FFFFFFF;
  if ((x & magnitude) < infinity) x += half;
  x &= ~(unit - 1);
  return ins.flags & SATFINITE && (x & magnitude) >= infinity ? x - unit : x;
}

u64 to_integral(const Ins& ins, u64 x) {
  const FloatFormat& format = *format_of(ins.type);
  Number n = source(ins, x, format);
  if (n.kind == Number::finite && n.exponent < 63) n = number_of(n.negative, magnitude_of(n, ins.rnd));
  return result(ins, n, format);
}

// Two values packed into a word, or out of one.
u64 pair_to_pair(const Ins& ins, u64 x) {
  const FloatFormat &from = *format_of(ins.src), &to = *format_of(ins.type);
  int of = from.top() + 1, into = to.top() + 1;
  u64 low = result(ins, source(ins, x & ((1ull << of) - 1), from), to);
  u64 high = result(ins, source(ins, x >> of & ((1ull << of) - 1), from), to);
  return high << into | low;
}

u32 pack(const Ins& ins, u32 high, u32 low) {
  const FloatFormat& to = *format_of(ins.type);
  return static_cast<u32>(result(ins, source(ins, high, F32), to) << (to.top() + 1) |
                          result(ins, source(ins, low, F32), to));
}

// Two saturated integers below the lower half of a third operand, if there is one.
u32 pack_integers(const Ins& ins, s32 high, s32 low, u32 upper) {
  int bits = 8 * bytes_of(ins.type);
  auto part = [&](s32 x) {
    bool negative = x < 0;
    u64 magnitude = negative ? 0 - static_cast<u64>(static_cast<s64>(x)) : static_cast<u64>(x);
    return static_cast<u32>(clamped(negative, magnitude, ins.type)) & (ALL >> (32 - bits));
  };
  u32 packed = part(high) << bits | part(low);
  return bits == 8 ? upper << 16 | packed : packed;
}

u32 pack_two_integers(const Ins& ins, s32 high, s32 low) { return pack_integers(ins, high, low, 0); }

// Registers may be wider than what they hold, so that a conversion says how its own words lie.
Kind kind_in(Type type) { return bytes_of(type) == 8 ? Kind::wide : Kind::word; }
Kind kind_out(Type type) { return bytes_of(type) == 8 ? Kind::wide : is_signed(type) ? Kind::signed_word : Kind::word; }

template <u64 (*F)(const Ins&, u64)>
struct Converting {
  static void run(const Ins& ins, const Lanes& lanes) {
    bool wide_in = ins.form.in[0] == Kind::wide, wide_out = ins.form.out[0] == Kind::wide;
    for (int l = 0; l < LANES; ++l) {
      u64 value = F(ins, wide_in ? get<u64>(lanes.in[0], l) : get<u32>(lanes.in[0], l));
      if (wide_out)
        static_cast<u64*>(lanes.out[0])[l] = value;
      else
        static_cast<u32*>(lanes.out[0])[l] = static_cast<u32>(value);
    }
  }
  static Form form(const Ins& ins) { return {run, 1, 1, {kind_in(ins.src)}, {kind_out(ins.type)}}; }
};

}  // namespace

Form convert_form(const Ins& ins) {
  if (ins.flags & ~(FTZ | SAT | RELU | SATFINITE)) return {};
  bool from = format_of(ins.src), to = format_of(ins.type);
  switch (ins.op) {
    case Op::cvt_int: return Converting<int_to_int>::form(ins);
    case Op::cvt_float_from_int: return to ? Converting<int_to_float>::form(ins) : Form();
    case Op::cvt_int_from_float: return from ? Converting<float_to_int>::form(ins) : Form();
    case Op::cvt_float: {
      bool pair = ins.src == Type::f16x2 || ins.src == Type::e4m3x2 || ins.src == Type::e5m2x2;
      if (!from || !to) return {};
      if (ins.src == Type::bf16 && ins.type == Type::f32 && !ins.flags) return form<&shifted>();
      return pair ? Converting<pair_to_pair>::form(ins) : Converting<float_to_float>::form(ins);
    }
    case Op::cvt_round: return from && ins.src == ins.type ? Converting<to_integral>::form(ins) : Form();
    case Op::cvt_tf32: return ins.rnd == Word::rna ? form<&to_tf32_away>() : Converting<float_to_float>::form(ins);
    case Op::cvt_pack: return to ? form<&pack>() : Form();
    case Op::cvt_pack_int: return ins.args() > 3 ? form<&pack_integers>() : form<&pack_two_integers>();
    default: return {};
  }
}

}  // namespace sim
