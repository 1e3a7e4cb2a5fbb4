// Bit fields, permutations, counts, logic of three operands and of predicates.
#include "forms.h"
#include "numbers.h"

namespace sim {
namespace {

#include "lanes.h"

template <class T>
constexpr u32 bits_of = 8 * sizeof(T);

template <class T>
int leading_zeros(T x) {
  if (x == 0) return bits_of<T>;
  return sizeof(T) == 8 ? __builtin_clzll(x) : __builtin_clz(static_cast<u32>(x));
}

// What counts of a position or length: of 32-bit fields the low byte, of 64-bit fields the whole word.
template <class T>
u32 field_bound(u32 x) {
  return sizeof(T) == 8 ? x : x & 255;
}

// Bits position … position + length - 1; those past the word are the sign's, or zero.
template <class T>
T extract(T a, u32 position, u32 length) {
  constexpr u32 bits = bits_of<T>;
  position = field_bound<T>(position);
  length = field_bound<T>(length);
  if (length == 0) return 0;
  T shifted = position < bits ? static_cast<T>(a >> position) : static_cast<T>(a < 0 ? -1 : 0);
  if (length >= bits) return shifted;
  u64 field = (1ull << length) - 1;
  u64 last = static_cast<u64>(position) + length - 1;
  bool negative = std::is_signed_v<T> && (a >> (last < bits ? last : bits - 1) & 1);
  return static_cast<T>((static_cast<u64>(shifted) & field) | (negative ? ~field : 0));
}

template <class T>
T insert(T a, T b, u32 position, u32 length) {
  position = field_bound<T>(position);
  length = field_bound<T>(length);
  if (length == 0 || position >= bits_of<T>) return b;
  T field = static_cast<T>((length >= 64 ? 0 : 1ull << length) - 1) << position;
  return static_cast<T>((b & ~field) | (a << position & field));
}

template <class T>
T reversed(T a) {
  T r = 0;
  for (u32 i = 0; i < bits_of<T>; ++i) r = static_cast<T>(r | (a >> i & 1) << (bits_of<T> - 1 - i));
  return r;
}

// Where the highest bit is that is not the sign; with shiftamt the shift that brings it to the top.
template <class T>
u32 highest(const Ins& ins, T a) {
  using U = std::make_unsigned_t<T>;
  U x = static_cast<U>(a < 0 ? ~a : a);
  if (x == 0) return ALL;
  u32 place = bits_of<T> - 1 - static_cast<u32>(leading_zeros(x));
  return ins.flags & SHIFTAMT ? bits_of<T> - 1 - place : place;
}

// The bit of a mask that is the offset'th set one from base on, upwards or downwards.
u32 nth_set(u32 mask, u32 base, s32 offset) {
  if (base >= 32) return ALL;
  if (offset == 0) return mask >> base & 1 ? base : ALL;
  s32 step = offset > 0 ? 1 : -1, left = offset > 0 ? offset : -offset;
  for (s32 i = static_cast<s32>(base); i >= 0 && i < 32; i += step)
    if ((mask >> i & 1) && --left == 0) return static_cast<u32>(i);
  return ALL;
}

u32 field_mask(const Ins& ins, u32 a, u32 b) {
  if (ins.mode == Word::wrap) {
    a &= 31;
    b &= 31;
  }
  if (a >= 32 || b == 0) return 0;
  return static_cast<u32>(((b >= 32 ? 0 : 1ull << b) - 1) << a);
}

// Keeps the low b bits, and extends them.
template <class T>
T extended_from(const Ins& ins, T a, u32 b) {
  if (ins.mode == Word::wrap) b &= 31;
  if (b >= 32) return a;
  if (b == 0) return 0;
  u32 up = static_cast<u32>(a) << (32 - b);
  return static_cast<T>(static_cast<T>(up) >> (32 - b));
}

u32 funnel(const Ins& ins, u32 low, u32 high, u32 shift) {
  shift = ins.mode == Word::wrap ? shift & 31 : shift < 32 ? shift : 32;
  u64 pair = static_cast<u64>(high) << 32 | low;
  return static_cast<u32>(ins.join == Word::l ? pair << shift >> 32 : pair >> shift);
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

// prmt's modes: the selector that each of four gives.
u32 mode_selector(Word mode, u32 s) {
  static const u32 table[6][4] = {
      {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123}, {0x0000, 0x1111, 0x2222, 0x3333},
      {0x3210, 0x3211, 0x3222, 0x3333}, {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
  return table[static_cast<int>(mode) - static_cast<int>(Word::f4e)][s & 3];
}

u32 permuted_in(const Ins& ins, u32 a, u32 b, u32 selector) {
  return permuted(a, b, ins.mode == Word::none ? selector : mode_selector(ins.mode, selector));
}

u32 looked_up(u32 a, u32 b, u32 c, u32 table) {
  u32 r = 0;
  for (int i = 0; i < 8; ++i)
    if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return r;
}

void looked_up_twice(const Ins& ins, const Lanes& lanes) {
  u32 *out = static_cast<u32*>(lanes.out[0]), truth = 0, q = *static_cast<const u32*>(lanes.in[4]);
  for (int l = 0; l < LANES; ++l) {
    out[l] = looked_up(get<u32>(lanes.in[0], l), get<u32>(lanes.in[1], l), get<u32>(lanes.in[2], l),
                       get<u32>(lanes.in[3], l));
    truth |= static_cast<u32>(out[l] != 0) << l;
  }
  *static_cast<u32*>(lanes.out[1]) = ins.join == Word::and_ ? truth & q : truth | q;
}

template <class T>
u32 count_leading(T a) {
  return static_cast<u32>(leading_zeros(a));
}

template <class T>
u32 count_set(T a) {
  return static_cast<u32>(__builtin_popcountll(a));
}

struct Cnot {
  template <class T>
  static T of(T a) {
    return a == 0;
  }
};

// Predicates of a warp are one word, a bit a lane.
void logic(const Ins& ins, const Lanes& lanes) {
  u32 a = *static_cast<const u32*>(lanes.in[0]), b = ins.form.ins > 1 ? *static_cast<const u32*>(lanes.in[1]) : 0;
  *static_cast<u32*>(lanes.out[0]) = ins.op == Op::and_   ? a & b
                                     : ins.op == Op::or_  ? a | b
                                     : ins.op == Op::xor_ ? a ^ b
                                     : ins.op == Op::not_ ? ~a
                                                          : a;
}

Form predicate_form(const Ins& ins) {
  if (ins.type != Type::pred) return {};
  return {logic, ins.op == Op::not_ || ins.op == Op::mov ? 1 : 2, 1, {Kind::pred, Kind::pred}, {Kind::pred}};
}

// Four registers of 16 bits to one of 64, and back.
u64 pack_quarters(u16 a, u16 b, u16 c, u16 d) {
  return static_cast<u64>(d) << 48 | static_cast<u64>(c) << 32 | static_cast<u64>(b) << 16 | a;
}

void unpack_quarters(const Ins&, const Lanes& lanes) {
  for (int part = 0; part < 4; ++part)
    for (int l = 0; l < LANES; ++l)
      static_cast<u32*>(lanes.out[part])[l] = static_cast<u16>(get<u64>(lanes.in[0], l) >> (16 * part));
}

Form move_form(const Ins& ins) {
  if (bytes_of(ins.type) != 8) return {};
  if (ins.op == Op::mov_pack) return form<&pack_quarters>();
  return {unpack_quarters, 1, 4, {Kind::wide}, {Kind::word, Kind::word, Kind::word, Kind::word}};
}

}  // namespace

Form bit_form(const Ins& ins) {
  bool wide = bytes_of(ins.type) == 8, has_sign = is_signed(ins.type);
  switch (ins.op) {
    case Op::and_:
    case Op::or_:
    case Op::xor_:
    case Op::not_:
    case Op::mov: return predicate_form(ins);
    case Op::mov_pack:
    case Op::mov_unpack: return move_form(ins);
    case Op::cnot: return words<Cnot>(ins.type);
    case Op::clz: return wide ? form<&count_leading<u64>>() : form<&count_leading<u32>>();
    case Op::popc: return wide ? form<&count_set<u64>>() : form<&count_set<u32>>();
    case Op::brev: return wide ? form<&reversed<u64>>() : form<&reversed<u32>>();
    case Op::bfind:
      return wide ? has_sign ? form<&highest<s64>>() : form<&highest<u64>>()
                  : has_sign ? form<&highest<s32>>() : form<&highest<u32>>();
    case Op::bfe:
      return wide ? has_sign ? form<&extract<s64>>() : form<&extract<u64>>()
                  : has_sign ? form<&extract<s32>>() : form<&extract<u32>>();
    case Op::bfi: return wide ? form<&insert<u64>>() : form<&insert<u32>>();
    case Op::fns: return form<&nth_set>();
    case Op::bmsk: return form<&field_mask>();
    case Op::szext: return has_sign ? form<&extended_from<s32>>() : form<&extended_from<u32>>();
    case Op::shf: return form<&funnel>();
    case Op::prmt: return form<&permuted_in>();
    case Op::lop3: return form<&looked_up>();
    case Op::lop3_dual:
      return {looked_up_twice, 5, 2, {Kind::word, Kind::word, Kind::word, Kind::word, Kind::pred},
              {Kind::word, Kind::pred}};
    default: return {};
  }
}

}  // namespace sim
