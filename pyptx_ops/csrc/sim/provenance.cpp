// See provenance.h.
#include "provenance.h"

#include "machine.h"

namespace sim {
namespace {

constexpr s64 UNIT = 16;

// The coordinates in the tensor of a unit of a tile.
void coordinates(const LoadedTile& tile, s64 unit, s64* at) {
  const TensorMap& map = *tile.map;
  s64 elements = unit * UNIT / map.element, wide = map.box[0];
  at[0] = tile.at[0] + elements % wide;
  map.line(tile.at, tile.offsets, static_cast<u64>(elements / wide), at);
}

std::string text_of(const LoadedTile& tile, s64 unit) {
  s64 at[5];
  coordinates(tile, unit, at);
  std::string text = "(";
  for (int d = 0; d < tile.map->rank; ++d) text += (d ? ", " : "") + std::to_string(at[d]);
  return text + ")";
}

}  // namespace

void TileCheck::visit(u32 row, u32 k, Origin origin) {
  if (!origin.tile) return;
  s64 unit = origin.unit;
  for (Part& part : parts_) {
    if (part.tile != origin.tile) continue;
    s64 rows = static_cast<s64>(row) - part.row, ks = static_cast<s64>(k) - part.k;
    if (!part.by_k && !rows) part.by_k = (unit - part.unit) / ks;
    if (!part.by_row && rows && !ks) {
      part.by_row = (unit - part.unit) / rows;
      if (part.by_row == part.by_k) refuse(part, row, k, unit);
    }
    bool known = (part.by_row || !rows) && (part.by_k || !ks);
    if ((!part.by_k && !rows) || (!part.by_row && rows && !ks) ||
        (known && unit != part.unit + rows * part.by_row + ks * part.by_k) || leaves_line(part, rows, part.by_row) ||
        leaves_line(part, ks, part.by_k))
      refuse(part, row, k, unit);
    return;
  }
  parts_.push_back({origin.tile, row, k, unit});
}

// Whether so many steps along the innermost dimension end outside the box: the next line of the tile follows it.
bool TileCheck::leaves_line(const Part& part, s64 count, s64 step) const {
  const TensorMap& map = *tiles_[part.tile - 1].map;
  s64 line = static_cast<s64>(map.extent(0)) * map.element / UNIT;
  if (!count || std::abs(step) >= line) return false;
  s64 at = part.unit % line + count * step;
  return at < 0 || at >= line;
}

std::string TileCheck::place(const Part& part, s64 unit) const {
  return text_of(tiles_[part.tile - 1], unit);
}

void TileCheck::refuse(const Part& part, u32 row, u32 k, s64 got) const {
  auto name = [&](s64 r) { return "row " + std::to_string(r * rows_); };
  auto step = [&](s64 c) { return "k " + std::to_string(c * elements_); };
  std::string what = name(row) + " of " + operand_ + " at " + step(k);
  s64 rows = static_cast<s64>(row) - part.row, steps = static_cast<s64>(k) - part.k, moved = got - part.unit;
  s64 by_rows = moved - steps * part.by_k, by_steps = moved - rows * part.by_row;
  if (by_rows == rows * part.by_row)
    what += " lies past the end of its line";
  else if (part.by_row && by_rows % part.by_row == 0 && part.row + by_rows / part.by_row >= 0)
    what += " came from " + name(part.row + by_rows / part.by_row);
  else if (part.by_k && by_steps % part.by_k == 0 && part.k + by_steps / part.by_k >= 0)
    what += " came from " + step(part.k + by_steps / part.by_k);
  else
    what += " does not come from that row and step";
  Problem problem("inconsistent tile",
                  what + " of the tile in shared memory: from " + place(part, got) + " of the tensor, while " +
                      name(part.row) + " at " + step(part.k) + " is " + place(part, part.unit) +
                      "; the descriptor's swizzle, offsets or start do not fit the copy");
  problem.others.emplace_back(tiles_[part.tile - 1].line, "the copy that loaded the tile");
  throw problem;
}

// The dimension of the tensor that a step along K moves in, and the coordinate at the operand's first step.
bool TileCheck::along_k(const Part& part, int* dimension, s64* coordinate) const {
  const LoadedTile& tile = tiles_[part.tile - 1];
  s64 first = part.unit - part.k * part.by_k, from[5], to[5];
  if (!part.by_k || first < 0) return false;
  coordinates(tile, first, from);
  coordinates(tile, first + part.by_k, to);
  int moved = 0;
  for (int d = 0; d < tile.map->rank; ++d)
    if (from[d] != to[d]) ++moved, *dimension = d;
  *coordinate = moved ? from[*dimension] : 0;
  return moved == 1;
}

Fetched TileCheck::finish() {
  Fetched result;
  if (parts_.empty()) return result;
  const Part& first = parts_[0];
  int dimension = 0, other = 0;
  s64 there;
  result.tile = first.tile;
  result.known = along_k(first, &dimension, &result.k);
  if (!result.known) return result;
  for (const Part& part : parts_) {
    const LoadedTile &tile = tiles_[part.tile - 1], &start = tiles_[first.tile - 1];
    if (tile.map != start.map || !along_k(part, &other, &there) || other != dimension || there == result.k) continue;
    Problem problem("inconsistent tile",
                    "row " + std::to_string(part.row * rows_) + " of " + operand_ + " came from " +
                        place(part, part.unit) + " of the tensor and row " + std::to_string(first.row * rows_) +
                        " from " + place(first, first.unit) + ": they differ in the coordinate along K");
    problem.others.emplace_back(tile.line, "the copy that loaded the first of these");
    problem.others.emplace_back(start.line, "the copy that loaded the other");
    throw problem;
  }
  return result;
}

// The wgmmas of a group that read one pair of tiles go through their K together.
void Machine::check_steps(WgmmaGroup& group, const Fetched& a, const Fetched& b) {
  if (!a.known || !b.known) return;
  for (const WgmmaGroup::Step& step : group.steps) {
    if (step.tile_a != a.tile || step.tile_b != b.tile || step.a - step.b == a.k - b.k) continue;
    throw Problem("inconsistent tile",
                  "this wgmma multiplies k " + std::to_string(a.k) + " of A by k " + std::to_string(b.k) +
                      " of B, and another one of its group k " + std::to_string(step.a) + " by k " +
                      std::to_string(step.b) + " of the same tiles: the descriptors advance differently");
  }
  group.steps.push_back({a.tile, b.tile, a.k, b.k});
}

}  // namespace sim
