// See reductions.h.
#include "reductions.h"

#include "numbers.h"

namespace sim {
namespace {

u32 sum_f32(u32 was, u32 x, bool flush) {
  float a = f32_of(was), b = f32_of(x);
  if (!flush) return f32_bits(a + b);
  return f32_bits(flushed(flushed(a) + flushed(b)));
}

// Memory leaves a NaN as it is; elsewhere an ordinary addition to the value makes it quiet.
u64 sum_f64(u64 was, u64 x, bool memory) {
  double a = bits_to<double>(was), b = bits_to<double>(x), sum = a + b;
  if (sum == sum) return bits_to<u64>(sum);
  constexpr u64 quiet = 1ull << 51, invalid = 0xFFF8000000000000ull;
  if (memory) return b != b ? x : a != a ? was : invalid;
  return a != a ? was | quiet : b != b ? x | quiet : invalid;
}

// The sum of two halves is rounded twice, which gives what rounding once does.
u32 reduced_half(Word op, bool brain, u16 was, u16 x) {
  float a = brain ? bf16_of(was) : f16_of(was), b = brain ? bf16_of(x) : f16_of(x);
  if (op == Word::add) return brain ? bf16_bits(a + b) : f16_bits(a + b);
  if (a != a && b != b) return 0x7FFF;
  if (a != a || b != b) return a != a ? x : was;  // the number
  bool less = a < b || (a == b && (was & 0x8000) && !(x & 0x8000));
  return (op == Word::min) == less ? was : x;
}

u64 reduced_integer(Word op, Type type, u64 was, u64 x) {
  bool less = !is_signed(type)        ? x < was
              : bytes_of(type) == 8 ? static_cast<s64>(x) < static_cast<s64>(was)
                                    : static_cast<s32>(x) < static_cast<s32>(was);
  switch (op) {
    case Word::add: return was + x;
    case Word::and_: return was & x;
    case Word::or_: return was | x;
    case Word::xor_: return was ^ x;
    case Word::exch: return x;
    case Word::min: return less ? x : was;
    case Word::max: return less ? was : x;
    case Word::inc: return was >= x ? 0 : was + 1;
    case Word::dec: return was == 0 || was > x ? x : was - 1;
    default: throw Problem("unsupported", "a reduction that the machine does not have");
  }
}

}  // namespace

u64 reduced(Word op, Type type, u64 was, u64 x, bool memory) {
  bool adds = op == Word::add;
  switch (type) {
    case Type::f32:
      if (adds) return sum_f32(static_cast<u32>(was), static_cast<u32>(x), memory);
      break;
    case Type::f64:
      if (adds) return sum_f64(was, x, memory);
      break;
    case Type::f16:
    case Type::bf16: return reduced_half(op, type == Type::bf16, static_cast<u16>(was), static_cast<u16>(x));
    case Type::f16x2:
    case Type::bf16x2: {
      bool brain = type == Type::bf16x2;
      u32 low = reduced_half(op, brain, static_cast<u16>(was), static_cast<u16>(x));
      return low | reduced_half(op, brain, static_cast<u16>(was >> 16), static_cast<u16>(x >> 16)) << 16;
    }
    default: break;
  }
  u32 bytes = static_cast<u32>(bytes_of(type));
  u64 field = bytes == 8 ? ~0ull : (1ull << (8 * bytes)) - 1;
  return reduced_integer(op, type, was & field, x & field) & field;
}

}  // namespace sim
