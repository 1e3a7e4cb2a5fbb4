// Integer and floating arithmetic, bits, comparison, conversion: what a lane computes by itself.
#include "machine.h"
#include "numbers.h"

namespace sim {
namespace {

template <class T>
using Lane = std::conditional_t<sizeof(T) == 8, u64, u32>;

template <class T>
T value_of(Lane<T> lane) {
  if constexpr (std::is_floating_point_v<T>)
    return bits_to<T>(lane);
  else
    return static_cast<T>(lane);
}

template <class T>
Lane<T> lane_of(T value) {
  if constexpr (std::is_same_v<T, float>)
    return f32_bits(value);
  else if constexpr (std::is_floating_point_v<T>)
    return bits_to<Lane<T>>(value);
  else
    return static_cast<Lane<T>>(static_cast<std::make_unsigned_t<T>>(value));
}

template <class T, class F>
void lanes1(Lane<T>* out, const Lane<T>* a, F f) {
  for (int l = 0; l < LANES; ++l) out[l] = lane_of<T>(f(value_of<T>(a[l])));
}

template <class T, class F>
void lanes2(Lane<T>* out, const Lane<T>* a, const Lane<T>* b, F f) {
  for (int l = 0; l < LANES; ++l) out[l] = lane_of<T>(f(value_of<T>(a[l]), value_of<T>(b[l])));
}

template <class T, class F>
void lanes3(Lane<T>* out, const Lane<T>* a, const Lane<T>* b, const Lane<T>* c, F f) {
  for (int l = 0; l < LANES; ++l) out[l] = lane_of<T>(f(value_of<T>(a[l]), value_of<T>(b[l]), value_of<T>(c[l])));
}

template <class T>
T high_product(T a, T b) {
  if constexpr (sizeof(T) == 8) {
    using W = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> 64);
  } else {
    using W = std::conditional_t<std::is_signed_v<T>, s64, u64>;
    return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> (8 * sizeof(T)));
  }
}

template <class T>
bool holds(Word cmp, T a, T b) {
  switch (cmp) {
    case Word::eq: return a == b;
    case Word::ne: return std::is_floating_point_v<T> ? (a < b || a > b) : a != b;
    case Word::lt:
    case Word::lo: return a < b;
    case Word::le:
    case Word::ls: return a <= b;
    case Word::gt:
    case Word::hi: return a > b;
    case Word::ge:
    case Word::hs: return a >= b;
    case Word::equ: return !(a < b || a > b);
    case Word::neu: return a != b;
    case Word::ltu: return !(a >= b);
    case Word::leu: return !(a > b);
    case Word::gtu: return !(a <= b);
    case Word::geu: return !(a < b);
    case Word::num: return a == a && b == b;
    case Word::nan: return a != a || b != b;
    default: throw Problem("unsupported", "a comparison that the machine does not have");
  }
}

float larger(float a, float b, bool nan_wins) {
  if (a != a || b != b) return nan_wins || (a != a && b != b) ? f32_of(CANONICAL_NAN) : a != a ? b : a;
  if (a == 0 && b == 0) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

u64 from_float(double value, Word rounding, Type type) {
  if (value != value) return 0;
  double whole = rounding == Word::rzi   ? std::trunc(value)
                 : rounding == Word::rmi ? std::floor(value)
                 : rounding == Word::rpi ? std::ceil(value)
                                         : std::nearbyint(value);
  int bits = 8 * bytes_of(type);
  double low = is_signed(type) ? -std::ldexp(1.0, bits - 1) : 0,
         past = std::ldexp(1.0, is_signed(type) ? bits - 1 : bits);
  if (whole < low) whole = low;
  if (whole >= past) return is_signed(type) ? (1ull << (bits - 1)) - 1 : bits == 64 ? ~0ull : (1ull << bits) - 1;
  return is_signed(type) ? static_cast<u64>(static_cast<s64>(whole)) : static_cast<u64>(whole);
}

u64 extended(u64 value, Type type) {
  switch (type) {
    case Type::u8:
    case Type::b8: return static_cast<u8>(value);
    case Type::s8: return static_cast<u64>(static_cast<s64>(static_cast<int8_t>(value)));
    case Type::u16:
    case Type::b16: return static_cast<u16>(value);
    case Type::s16: return static_cast<u64>(static_cast<s64>(static_cast<s16>(value)));
    case Type::u32:
    case Type::b32: return static_cast<u32>(value);
    case Type::s32: return static_cast<u64>(static_cast<s64>(static_cast<s32>(value)));
    default: return value;
  }
}

u32 permuted(u32 a, u32 b, u32 selector) {
  u64 pool = static_cast<u64>(b) << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    u32 pick = selector >> (4 * i) & 15;
    u32 byte = static_cast<u32>(pool >> (8 * (pick & 7))) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}

}  // namespace

template <class T>
bool Machine::integer(Warp& warp, const Ins& ins, u32 mask) {
  using L = Lane<T>;
  using U = std::make_unsigned_t<T>;
  L out[LANES];
  const L* a = read<L>(warp, ins.arg(1), mask);
  const L* b = ins.args() > 2 && ins.op != Op::shl && ins.op != Op::shr ? read<L>(warp, ins.arg(2), mask) : nullptr;
  const L* c = ins.args() > 3 ? read<L>(warp, ins.arg(3), mask) : nullptr;
  constexpr int BITS = 8 * sizeof(T);
  auto sum = [](T x, T y) { return static_cast<T>(static_cast<U>(x) + static_cast<U>(y)); };
  auto product = [](T x, T y) { return static_cast<T>(static_cast<u64>(x) * static_cast<u64>(y)); };
  switch (ins.op) {
    case Op::add: lanes2<T>(out, a, b, sum); break;
    case Op::sub:
      lanes2<T>(out, a, b, [](T x, T y) { return static_cast<T>(static_cast<U>(x) - static_cast<U>(y)); });
      break;
    case Op::mul_lo: lanes2<T>(out, a, b, product); break;
    case Op::mul_hi: lanes2<T>(out, a, b, high_product<T>); break;
    case Op::mad_lo: lanes3<T>(out, a, b, c, [&](T x, T y, T z) { return sum(product(x, y), z); }); break;
    case Op::div:
      lanes2<T>(out, a, b, [](T x, T y) {
        if (y == 0) return static_cast<T>(~U(0));
        return std::is_signed_v<T> && y == static_cast<T>(-1) ? static_cast<T>(U(0) - static_cast<U>(x))
                                                              : static_cast<T>(x / y);
      });
      break;
    case Op::rem:
      lanes2<T>(out, a, b, [](T x, T y) {
        return y == 0 ? x : std::is_signed_v<T> && y == static_cast<T>(-1) ? T(0) : static_cast<T>(x % y);
      });
      break;
    case Op::min: lanes2<T>(out, a, b, [](T x, T y) { return x < y ? x : y; }); break;
    case Op::max: lanes2<T>(out, a, b, [](T x, T y) { return x > y ? x : y; }); break;
    case Op::abs: lanes1<T>(out, a, [](T x) { return x < 0 ? static_cast<T>(U(0) - static_cast<U>(x)) : x; }); break;
    case Op::neg: lanes1<T>(out, a, [](T x) { return static_cast<T>(U(0) - static_cast<U>(x)); }); break;
    case Op::and_: lanes2<T>(out, a, b, [](T x, T y) { return static_cast<T>(x & y); }); break;
    case Op::or_: lanes2<T>(out, a, b, [](T x, T y) { return static_cast<T>(x | y); }); break;
    case Op::xor_: lanes2<T>(out, a, b, [](T x, T y) { return static_cast<T>(x ^ y); }); break;
    case Op::not_: lanes1<T>(out, a, [](T x) { return static_cast<T>(~x); }); break;
    case Op::mov: lanes1<T>(out, a, [](T x) { return x; }); break;
    case Op::shl:
    case Op::shr: {
      const u32* shift = read<u32>(warp, ins.arg(2), mask);
      for (int l = 0; l < LANES; ++l) {
        T x = value_of<T>(a[l]);
        u32 s = shift[l] < BITS ? shift[l] : BITS;
        T moved = ins.op == Op::shl ? static_cast<T>(s == BITS ? 0 : static_cast<U>(x) << s)
                  : s == BITS       ? static_cast<T>(x < 0 ? -1 : 0)
                                    : static_cast<T>(x >> s);
        out[l] = lane_of<T>(moved);
      }
      break;
    }
    case Op::selp: {
      u32 chosen = read_pred(warp, ins.arg(3), mask);
      for (int l = 0; l < LANES; ++l) out[l] = chosen >> l & 1 ? a[l] : b[l];
      break;
    }
    default: return false;
  }
  write<L>(warp, ins.arg(0), out, mask);
  return true;
}

bool Machine::floating(Warp& warp, const Ins& ins, u32 mask) {
  if (ins.type != Type::f32) throw Problem("unsupported", "this arithmetic is modelled for f32 only");
  if (ins.rnd != Word::none && ins.rnd != Word::rn)
    throw Problem("unsupported", "f32 arithmetic is modelled for rn only");
  u32 out[LANES];
  float in[3][LANES];
  bool ftz = ins.flags & FTZ, nan_wins = ins.flags & NAN_WINS;
  for (int k = 1; k < ins.args(); ++k) {
    const u32* lanes = read<u32>(warp, ins.arg(k), mask);
    for (int l = 0; l < LANES; ++l) in[k - 1][l] = ftz ? flushed(f32_of(lanes[l])) : f32_of(lanes[l]);
  }
  auto each = [&](auto f) {
    for (int l = 0; l < LANES; ++l) {
      float value = f(in[0][l], in[1][l], in[2][l]);
      if (ftz) value = flushed(value);
      if (ins.flags & SAT) value = value >= 0 ? (value < 1 ? value : 1.0f) : 0.0f;
      out[l] = f32_bits(value);
    }
  };
  switch (ins.op) {
    case Op::add_float: each([](float a, float b, float) { return a + b; }); break;
    case Op::sub_float: each([](float a, float b, float) { return a - b; }); break;
    case Op::mul_float: each([](float a, float b, float) { return a * b; }); break;
    case Op::fma: each([](float a, float b, float c) { return std::fma(a, b, c); }); break;
    case Op::div_float: each([](float a, float b, float) { return a / b; }); break;
    case Op::min_float: each([&](float a, float b, float) { return -larger(-a, -b, nan_wins); }); break;
    case Op::max_float: each([&](float a, float b, float) { return larger(a, b, nan_wins); }); break;
    case Op::abs_float: each([](float a, float, float) { return std::fabs(a); }); break;
    case Op::neg_float: each([](float a, float, float) { return -a; }); break;
    // Correctly rounded: within the stated error of the approximations.
    case Op::rcp:
    case Op::rcp_approx: each([](float a, float, float) { return 1.0f / a; }); break;
    case Op::sqrt:
    case Op::sqrt_approx: each([](float a, float, float) { return std::sqrt(a); }); break;
    case Op::rsqrt_approx:
      each([](float a, float, float) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); });
      break;
    case Op::ex2_approx:
      each([](float a, float, float) { return static_cast<float>(std::exp2(static_cast<double>(a))); });
      break;
    case Op::lg2_approx:
      each([](float a, float, float) { return static_cast<float>(std::log2(static_cast<double>(a))); });
      break;
    default: return false;
  }
  write<u32>(warp, ins.arg(0), out, mask);
  return true;
}

bool Machine::bits(Warp& warp, const Ins& ins, u32 mask) {
  bool wide = bytes_of(ins.type) == 8;
  u32 out[LANES];
  if (ins.op == Op::clz || ins.op == Op::popc) {
    const u64* a = read<u64>(warp, ins.arg(1), mask);
    for (int l = 0; l < LANES; ++l) {
      u64 x = wide ? a[l] : static_cast<u32>(a[l]);
      out[l] = static_cast<u32>(ins.op == Op::popc ? __builtin_popcountll(x)
                                : x                ? __builtin_clzll(x) - (wide ? 0 : 32)
                                : wide             ? 64
                                                   : 32);
    }
    write<u32>(warp, ins.arg(0), out, mask);
    return true;
  }
  if (wide) throw Problem("unsupported", "this bit operation is modelled for 32 bits only");
  const u32* a = read<u32>(warp, ins.arg(1), mask);
  const u32* b = ins.args() > 2 ? read<u32>(warp, ins.arg(2), mask) : a;
  const u32* c = ins.args() > 3 ? read<u32>(warp, ins.arg(3), mask) : a;
  for (int l = 0; l < LANES; ++l) {
    u32 x = a[l], r = 0;
    switch (ins.op) {
      case Op::brev:
        for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i);
        break;
      case Op::prmt: r = permuted(x, b[l], c[l]); break;
      case Op::lop3:
        for (int i = 0; i < 32; ++i)
          r |= (ins.arg(4).value >> ((x >> i & 1) << 2 | (b[l] >> i & 1) << 1 | (c[l] >> i & 1)) & 1) << i;
        break;
      case Op::bfe: {
        u32 position = b[l] & 255, length = c[l] & 255;
        s64 source = is_signed(ins.type) ? static_cast<s64>(static_cast<s32>(x)) : static_cast<s64>(x);
        if (length == 0)
          r = 0;
        else if (is_signed(ins.type)) {
          u32 top = position + length - 1 < 31 ? position + length - 1 : 31;
          s64 part = source >> (position < 63 ? position : 63);
          r = length >= 32 ? static_cast<u32>(part)
                           : static_cast<u32>((part & ((1ll << length) - 1)) | (x >> top & 1 ? -(1ll << length) : 0));
        } else
          r = position > 31 ? 0 : (x >> position) & (length >= 32 ? ALL : (1u << length) - 1);
        break;
      }
      default: return false;
    }
    out[l] = r;
  }
  write<u32>(warp, ins.arg(0), out, mask);
  return true;
}

void Machine::compare(Warp& warp, const Ins& ins, u32 mask) {
  u32 result = 0;
  auto run = [&](auto sample) {
    using T = decltype(sample);
    const Lane<T>* a = read<Lane<T>>(warp, ins.arg(1), mask);
    const Lane<T>* b = read<Lane<T>>(warp, ins.arg(2), mask);
    for (int l = 0; l < LANES; ++l)
      result |= static_cast<u32>(holds<T>(ins.cmp, value_of<T>(a[l]), value_of<T>(b[l]))) << l;
  };
  switch (ins.type) {
    case Type::b16:
    case Type::u16: run(u16()); break;
    case Type::s16: run(s16()); break;
    case Type::b32:
    case Type::u32: run(u32()); break;
    case Type::s32: run(s32()); break;
    case Type::b64:
    case Type::u64: run(u64()); break;
    case Type::s64: run(s64()); break;
    case Type::f32: run(float()); break;
    case Type::f64: run(double()); break;
    default: throw Problem("unsupported", "setp is not modelled for this type");
  }
  if (ins.join != Word::none) {
    u32 other = read_pred(warp, ins.arg(3), mask);
    result = ins.join == Word::and_ ? result & other : ins.join == Word::or_ ? result | other : result ^ other;
  }
  write_pred(warp, ins.arg(0), result, mask);
}

void Machine::convert(Warp& warp, const Ins& ins, u32 mask) {
  u64 out[LANES];
  if (ins.op == Op::cvt_pack) {
    const u32* hi = read<u32>(warp, ins.arg(1), mask);
    const u32* lo = read<u32>(warp, ins.arg(2), mask);
    bool half = ins.type == Type::f16x2, rz = ins.rnd == Word::rz;
    if ((!half && ins.type != Type::bf16x2) || ins.flags & (RELU | SATFINITE))
      throw Problem("unsupported", "cvt packs f16x2 and bf16x2 here, without relu and satfinite");
    auto narrow = [&](u32 x) { return static_cast<u32>(half ? f16_bits(f32_of(x), rz) : bf16_bits(f32_of(x), rz)); };
    for (int l = 0; l < LANES; ++l) out[l] = narrow(hi[l]) << 16 | narrow(lo[l]);
    write<u64>(warp, ins.arg(0), out, mask);
    return;
  }
  const u64* in = read<u64>(warp, ins.arg(1), mask);
  for (int l = 0; l < LANES; ++l) {
    u64 x = in[l];
    u32 word = static_cast<u32>(x);
    if (ins.op == Op::cvt_int) {
      out[l] = extended(extended(x, ins.src), ins.type);
    } else if (ins.op == Op::cvt_float_from_int) {
      s64 value = static_cast<s64>(extended(x, ins.src));
      float f = ins.src == Type::u64 ? static_cast<float>(x) : static_cast<float>(value);
      if (ins.type != Type::f32 || ins.rnd != Word::rn)
        throw Problem("unsupported", "integers convert to f32 with rn only");
      out[l] = f32_bits(f);
    } else {
      float f = ins.src == Type::f32    ? f32_of(word)
                : ins.src == Type::f16  ? f16_of(static_cast<u16>(word))
                : ins.src == Type::bf16 ? bf16_of(static_cast<u16>(word))
                                        : 0;
      if (bytes_of(ins.src) == 8 || bytes_of(ins.type) == 8 + (ins.op == Op::cvt_int_from_float))
        throw Problem("unsupported", "f64 conversions are not modelled");
      if (ins.flags & FTZ) f = flushed(f);
      bool rz = ins.rnd == Word::rz;
      out[l] = ins.op == Op::cvt_int_from_float ? from_float(f, ins.rnd, ins.type)
               : ins.type == Type::f16          ? f16_bits(f, rz)
               : ins.type == Type::bf16         ? bf16_bits(f, rz)
                                                : f32_bits(f);
    }
  }
  write<u64>(warp, ins.arg(0), out, mask);
}

bool Machine::arithmetic(Warp& warp, const Ins& ins, u32 mask) {
  if (ins.op > Op::cvt_pack) return false;
  switch (ins.op) {
    case Op::setp: compare(warp, ins, mask); return true;
    case Op::cvt_int:
    case Op::cvt_float:
    case Op::cvt_float_from_int:
    case Op::cvt_int_from_float:
    case Op::cvt_pack: convert(warp, ins, mask); return true;
    case Op::add_float:
    case Op::sub_float:
    case Op::mul_float:
    case Op::fma:
    case Op::min_float:
    case Op::max_float:
    case Op::abs_float:
    case Op::neg_float:
    case Op::div_float:
    case Op::rcp:
    case Op::sqrt:
    case Op::rcp_approx:
    case Op::sqrt_approx:
    case Op::rsqrt_approx:
    case Op::ex2_approx:
    case Op::lg2_approx: return floating(warp, ins, mask);
    case Op::clz:
    case Op::popc:
    case Op::brev:
    case Op::prmt:
    case Op::lop3:
    case Op::bfe: return bits(warp, ins, mask);
    case Op::mul_wide:
    case Op::mad_wide: {
      u64 out[LANES];
      const u32* a = read<u32>(warp, ins.arg(1), mask);
      const u32* b = read<u32>(warp, ins.arg(2), mask);
      const u64* c = ins.op == Op::mad_wide ? read<u64>(warp, ins.arg(3), mask) : nullptr;
      for (int l = 0; l < LANES; ++l) out[l] = extended(a[l], ins.type) * extended(b[l], ins.type) + (c ? c[l] : 0);
      write<u64>(warp, ins.arg(0), out, mask);
      return true;
    }
    case Op::mov_pack:
    case Op::mov_unpack: {
      bool packs = ins.op == Op::mov_pack;
      int parts = ins.size(packs ? 1 : 0), width = 8 * bytes_of(ins.type) / parts;
      u64 field = (width == 64 ? 0 : 1ull << width) - 1, out[LANES] = {};
      const u64* whole = packs ? nullptr : read<u64>(warp, ins.arg(1), mask);
      for (int p = 0; p < parts; ++p) {
        const u64* part = packs ? read<u64>(warp, ins.arg(1, p), mask) : nullptr;
        for (int l = 0; l < LANES; ++l)
          out[l] = packs ? out[l] | (part[l] & field) << (width * p) : whole[l] >> (width * p) & field;
        if (!packs) write<u64>(warp, ins.arg(0, p), out, mask);
      }
      if (packs) write<u64>(warp, ins.arg(0), out, mask);
      return true;
    }
    default: break;
  }
  if (ins.type == Type::pred) {
    u32 a = read_pred(warp, ins.arg(1), mask), b = ins.args() > 2 ? read_pred(warp, ins.arg(2), mask) : 0;
    u32 r = ins.op == Op::and_   ? a & b
            : ins.op == Op::or_  ? a | b
            : ins.op == Op::xor_ ? a ^ b
            : ins.op == Op::not_ ? ~a
                                 : a;
    write_pred(warp, ins.arg(0), r, mask);
    return true;
  }
  switch (ins.type) {
    case Type::b16:
    case Type::u16: return integer<u16>(warp, ins, mask);
    case Type::s16: return integer<s16>(warp, ins, mask);
    case Type::b32:
    case Type::u32:
    case Type::f32: return integer<u32>(warp, ins, mask);
    case Type::s32: return integer<s32>(warp, ins, mask);
    case Type::b64:
    case Type::u64:
    case Type::f64: return integer<u64>(warp, ins, mask);
    case Type::s64: return integer<s64>(warp, ins, mask);
    default: return false;
  }
}

}  // namespace sim
