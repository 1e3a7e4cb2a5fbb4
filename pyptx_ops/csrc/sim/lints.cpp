// What an access costs that hardware carries out in parts: wavefronts of shared memory, sectors of global memory. Counted
// for each instruction, where it is asked for, next to the least that its lanes could do with.
//
// Shared memory has 32 banks of 4 bytes. Lanes are served together as long as they ask for 128 bytes: all of them, half
// of them for 8 bytes each, a quarter for 16, and the 8 rows of a matrix; and each bank gives one word at a time.
#include <algorithm>

#include "machine.h"

namespace sim {
namespace {

constexpr u32 BANKS = 32, WORD = 4;
constexpr u64 SECTOR = 32;

template <class T>
void keep_distinct(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

// How often the busiest bank is asked for a word.
u32 wavefronts(std::vector<u64>& words) {
  keep_distinct(words);
  u32 asked[BANKS] = {}, most = 0;
  for (u64 word : words) most = std::max(most, ++asked[word % BANKS]);
  return most;
}

}  // namespace

void Machine::count(const Ins& ins, Traffic::Kind kind, u64 done, u64 least) {
  Traffic& traffic = traffic_[static_cast<size_t>(&ins - program_.code.data()) * Traffic::KINDS + kind];
  traffic.kind = kind;
  traffic.line = ins.line;
  ++traffic.runs;
  traffic.done += static_cast<s64>(done);
  traffic.least += static_cast<s64>(least);
}

// addresses: of the lanes, or of the rows of matrices.
void Machine::lint(const Ins& ins, const u64* address, u32 mask, u32 bytes) {
  if (!mask) return;
  Word space = ins.space == Word::none ? space_of(address[__builtin_ctz(mask)]) : ins.space;
  if (is_shared(space))
    lint_shared(ins, address, mask, bytes);
  else if (space == Word::global)
    lint_global(ins, address, mask, bytes);
}

void Machine::lint_shared(const Ins& ins, const u64* address, u32 mask, u32 bytes) {
  int together = static_cast<int>(LANES * WORD / std::max(bytes, WORD));
  u64 done = 0, least = 0;
  for (int first = 0; first < LANES; first += together) {
    std::vector<u64> words;
    for (int l = first; l < first + together; ++l)
      for (u32 byte = 0; (mask >> l & 1) && byte < bytes; byte += WORD) words.push_back((address[l] + byte) / WORD);
    if (words.empty()) continue;
    done += wavefronts(words);
    ++least;
  }
  count(ins, Traffic::shared, done, least);
}

void Machine::lint_global(const Ins& ins, const u64* address, u32 mask, u32 bytes) {
  std::vector<u64> places, sectors;
  for (int l = 0; l < LANES; ++l)
    for (u32 byte = 0; (mask >> l & 1) && byte < bytes; ++byte) places.push_back(address[l] + byte);
  keep_distinct(places);
  for (u64 place : places) sectors.push_back(place / SECTOR);
  keep_distinct(sectors);
  count(ins, Traffic::global, sectors.size(), (places.size() + SECTOR - 1) / SECTOR);
}

std::vector<Traffic> Machine::traffic() const {
  std::vector<Traffic> seen;
  std::copy_if(traffic_.begin(), traffic_.end(), std::back_inserter(seen), [](const Traffic& t) { return t.runs; });
  return seen;
}

}  // namespace sim
