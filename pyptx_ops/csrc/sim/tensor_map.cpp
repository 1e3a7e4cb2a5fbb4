// See tensor_map.h.
#include "tensor_map.h"

#include <cstring>

namespace sim {
namespace {

constexpr u64 SEAL = 0x70616D726F736E74;  // in bytes that no field uses: what was encoded is told from anything else
constexpr int FLAGS_AT = 8, STRIDES_AT = 12, HIGH_STRIDES_AT = 28, DIMS_AT = 32, STEPS_AT = 52, BOXES_AT = 55, SEAL_AT = 120;
constexpr int RANK_SHIFT = 4, TYPE_SHIFT = 7, INTERLEAVE_SHIFT = 11, SWIZZLE_SHIFT = 13, FILL_SHIFT = 15;

// By tensormap.replace's codes.
constexpr Type TYPES[] = {Type::u8,  Type::u16, Type::u32, Type::s32,  Type::u64,  Type::s64, Type::f16,
                          Type::f32, Type::f32, Type::f64, Type::bf16, Type::tf32, Type::tf32};

u32 word_at(const u8* bytes, int at) {
  u32 word;
  std::memcpy(&word, bytes + at, sizeof word);
  return word;
}

void put_bits(u8* bytes, int at, int shift, int width, u64 value) {
  u32 word = word_at(bytes, at), field = (width == 32 ? ~0u : (1u << width) - 1) << shift;
  word = (word & ~field) | (static_cast<u32>(value) << shift & field);
  std::memcpy(bytes + at, &word, sizeof word);
}

u32 bits(const u8* bytes, int at, int shift, int width) {
  return word_at(bytes, at) >> shift & (width == 32 ? ~0u : (1u << width) - 1);
}

[[noreturn]] void refuse(const std::string& why) { throw Problem("tensor map", why); }

}  // namespace

void TensorMap::set_type(int code) {
  if (code < 0 || code >= static_cast<int>(std::size(TYPES)))
    refuse("elements of code " + std::to_string(code) + ", which is a packed type or none");
  type = TYPES[code];
  element = bytes_of(type);
}

u64 TensorMap::lines() const {
  if (im2col) return pixels;
  u64 total = 1;
  for (int d = 1; d < rank; ++d) total *= extent(d);
  return total;
}

void TensorMap::line(const s32* at, const u32* offsets, u64 number, s64* place) const {
  s64 rest = static_cast<s64>(number);
  for (int d = 1; d < rank; ++d) {
    bool window = im2col && d + 1 < rank;
    s64 low = window ? lower[d - 1] : at[d], count = window ? starts(d) : im2col ? rest + 1 : extent(d);
    if (window) rest += (at[d] - low) / steps[d];
    place[d] = low + rest % count * steps[d] + (window ? offsets[d - 1] : 0);
    rest /= count;
  }
}

// The corners of a window of im2col have 16 bits each, or 8 or 5 where two or three dimensions share them.
void TensorMap::check_window() const {
  if (rank < 3) refuse("im2col takes 3 to 5 dimensions, got " + std::to_string(rank));
  if (pixels < 1 || pixels > 1024) refuse(std::to_string(pixels) + " pixels of im2col; 1 to 1024 are taken");
  s32 limit = rank == 3 ? 1 << 15 : rank == 4 ? 1 << 7 : 1 << 4;
  for (int d = 1; d + 1 < rank; ++d) {
    for (s32 corner : {lower[d - 1], upper[d - 1]})
      if (corner < -limit || corner >= limit)
        refuse("a corner of im2col at " + std::to_string(corner) + "; " + std::to_string(-limit) + " to " +
               std::to_string(limit - 1) + " are taken in " + std::to_string(rank) + " dimensions");
    if (!starts(d)) refuse("the window of im2col is empty in dimension " + std::to_string(d));
  }
}

void TensorMap::check() const {
  auto of = [](u64 value) { return std::to_string(value); };
  if (rank < 1 || rank > 5) refuse("a tensor map has 1 to 5 dimensions, got " + of(static_cast<u64>(rank)));
  if (interleave) refuse("interleaved layouts are not modelled");
  if (address % 16) refuse("the address of a tensor map is no multiple of 16 bytes");
  u64 inner = static_cast<u64>(box[0]) * static_cast<u64>(element);
  if (inner % 16) refuse("the inner box of a tensor map is " + of(inner) + " bytes, which is no multiple of 16");
  if (swizzle && inner > static_cast<u64>(swizzle))
    refuse("the inner box of a tensor map is " + of(inner) + " bytes, wider than its swizzle of " +
           std::to_string(swizzle));
  if (im2col) check_window();
  bool floating = type == Type::f16 || type == Type::bf16 || type == Type::f32 || type == Type::f64 || type == Type::tf32;
  if (nan && !floating) refuse("NaN fill of integers");
  for (int d = 0; d < rank; ++d) {
    if (box[d] < 1 || box[d] > 256) refuse("a box of " + of(box[d]) + " elements; 1 to 256 are taken");
    if (steps[d] < 1 || steps[d] > 8) refuse("an element stride of " + of(steps[d]) + "; 1 to 8 are taken");
    if (dims[d] < 1 || dims[d] > 1ull << 32) refuse("a dimension of size " + of(dims[d]) + "; 1 to 2^32 are taken");
    if (!d) continue;
    if (strides[d - 1] % 16) refuse("a stride of " + of(strides[d - 1]) + " bytes, which is no multiple of 16");
    if (strides[d - 1] >= 1ull << 40) refuse("a stride of " + of(strides[d - 1]) + " bytes; less than 2^40 are taken");
  }
}

void replace_field(u8* bytes, Word field, u32 ordinal, u64 value) {
  int d = static_cast<int>(ordinal);
  switch (field) {
    case Word::global_address: std::memcpy(bytes, &value, sizeof value); break;
    case Word::rank: put_bits(bytes, FLAGS_AT, RANK_SHIFT, 3, value); break;
    case Word::elemtype: put_bits(bytes, FLAGS_AT, TYPE_SHIFT, 4, value); break;
    case Word::interleave_layout: put_bits(bytes, FLAGS_AT, INTERLEAVE_SHIFT, 2, value); break;
    case Word::swizzle_mode: put_bits(bytes, FLAGS_AT, SWIZZLE_SHIFT, 2, value); break;
    case Word::fill_mode: put_bits(bytes, FLAGS_AT, FILL_SHIFT, 1, value); break;
    case Word::global_stride:
      put_bits(bytes, STRIDES_AT + 4 * d, 0, 32, value >> 4);
      put_bits(bytes, HIGH_STRIDES_AT, 4 * d, 4, value >> 36);
      break;
    case Word::global_dim: put_bits(bytes, DIMS_AT + 4 * d, 0, 32, value - 1); break;
    case Word::element_stride: put_bits(bytes, STEPS_AT, 3 * d, 3, value - 1); break;
    case Word::box_dim: bytes[BOXES_AT + d] = static_cast<u8>(value - 1); break;
    default: throw Problem("unsupported", "a field of a tensor map that the machine does not have");
  }
}

void encode(const TensorMap& map, int code, u8* bytes) {
  std::memset(bytes, 0, MAP_BYTES);
  std::memcpy(bytes + SEAL_AT, &SEAL, sizeof SEAL);
  replace_field(bytes, Word::global_address, 0, map.address);
  replace_field(bytes, Word::rank, 0, static_cast<u64>(map.rank - 1));
  replace_field(bytes, Word::elemtype, 0, static_cast<u64>(code));
  replace_field(bytes, Word::swizzle_mode, 0, map.swizzle == 128 ? 3 : static_cast<u64>(map.swizzle / 32));
  replace_field(bytes, Word::fill_mode, 0, map.nan);
  for (u32 d = 0; d < static_cast<u32>(map.rank); ++d) {
    replace_field(bytes, Word::global_dim, d, map.dims[d]);
    replace_field(bytes, Word::box_dim, d, map.box[d]);
    replace_field(bytes, Word::element_stride, d, map.steps[d]);
    if (d) replace_field(bytes, Word::global_stride, d - 1, map.strides[d - 1]);
  }
}

TensorMap decode_map(const u8* bytes) {
  u64 seal;
  std::memcpy(&seal, bytes + SEAL_AT, sizeof seal);
  if (seal != SEAL) refuse("what lies at this address is no tensor map, nor a copy of one");
  TensorMap map;
  std::memcpy(&map.address, bytes, sizeof map.address);
  map.rank = static_cast<int>(bits(bytes, FLAGS_AT, RANK_SHIFT, 3)) + 1;
  map.set_type(static_cast<int>(bits(bytes, FLAGS_AT, TYPE_SHIFT, 4)));
  map.interleave = static_cast<int>(bits(bytes, FLAGS_AT, INTERLEAVE_SHIFT, 2));
  u32 mode = bits(bytes, FLAGS_AT, SWIZZLE_SHIFT, 2);
  map.swizzle = mode ? 16 << mode : 0;
  map.nan = bits(bytes, FLAGS_AT, FILL_SHIFT, 1);
  for (int d = 0; d < map.rank && d < 5; ++d) {
    map.dims[d] = static_cast<u64>(bits(bytes, DIMS_AT + 4 * d, 0, 32)) + 1;
    map.box[d] = static_cast<u32>(bytes[BOXES_AT + d]) + 1;
    map.steps[d] = bits(bytes, STEPS_AT, 3 * d, 3) + 1;
    if (d < map.rank - 1)
      map.strides[d] = static_cast<u64>(bits(bytes, STRIDES_AT + 4 * d, 0, 32)) << 4 |
                       static_cast<u64>(bits(bytes, HIGH_STRIDES_AT, 4 * d, 4)) << 36;
  }
  return map;
}

}  // namespace sim
