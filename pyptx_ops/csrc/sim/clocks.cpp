// Vector clocks: joining, and asking whether something is known.
#include "clocks.h"

#include <algorithm>

namespace sim {
namespace {

u32 at(const std::vector<u32>& clocks, u32 actor) { return actor < clocks.size() ? clocks[actor] : 0; }

void join(std::vector<u32>& into, const std::vector<u32>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void raise(std::vector<u32>& clocks, u32 actor, u32 clock) {
  if (clocks.size() <= actor) clocks.resize(actor + 1);
  clocks[actor] = std::max(clocks[actor], clock);
}

}  // namespace

void Clock::learn(const Clock& other) {
  join(seen, other.seen);
  join(proxied, other.proxied);
  if (!other.parts.empty()) learn_parts(other);
  if (other.elsewhere && other.elsewhere != elsewhere)
    for (const auto& [cluster, clock] : *other.elsewhere) learn_elsewhere(cluster, clock);
}

void Clock::learn_parts(const Clock& other) {
  for (const Part& part : other.parts) reach_part(part);
}

void Clock::learn_elsewhere(u32 cluster, const Clock& other) {
  auto all = elsewhere ? std::make_shared<std::map<u32, Clock>>(*elsewhere) : std::make_shared<std::map<u32, Clock>>();
  Clock& theirs = (*all)[cluster];
  join(theirs.seen, other.seen);
  join(theirs.proxied, other.proxied);
  theirs.learn_parts(other);
  elsewhere = std::move(all);
}

void Clock::see(u32 actor, u32 clock) { raise(seen, actor, clock); }

void Clock::trust(u32 actor, u32 clock) { raise(proxied, actor, clock); }

void Clock::reach(u32 actor, u32 clock) {
  see(actor, clock);
  trust(actor, clock);
}

void Clock::pass_fence() {
  join(proxied, seen);
  for (Part& part : parts) part.proxied = std::max(part.proxied, part.seen);
}

void Clock::reach_part(const Part& part) {
  if (part.seen <= at(seen, part.actor) && part.proxied <= at(proxied, part.actor)) return;
  for (Part& mine : parts)
    if (mine.actor == part.actor && mine.lanes == part.lanes) {
      mine.seen = std::max(mine.seen, part.seen);
      mine.proxied = std::max(mine.proxied, part.proxied);
      return;
    }
  auto known = [&](const Part& p) { return p.seen <= at(seen, p.actor) && p.proxied <= at(proxied, p.actor); };
  parts.erase(std::remove_if(parts.begin(), parts.end(), known), parts.end());
  parts.push_back(part);
}

bool Clock::sees(u32 actor, u32 clock, u32 lanes) const {
  if (at(seen, actor) >= clock) return true;
  u32 missing = lanes;
  for (const Part& part : parts)
    if (part.actor == actor && part.seen >= clock) missing &= ~part.lanes;
  return lanes && !missing;
}

bool Clock::sees_proxied(u32 actor, u32 clock, u32 lanes) const {
  if (at(proxied, actor) >= clock) return true;
  u32 missing = lanes;
  for (const Part& part : parts)
    if (part.actor == actor && part.proxied >= clock) missing &= ~part.lanes;
  return lanes && !missing;
}

void Page::split(u32 smaller) {
  u32 parts = unit / smaller;
  for (std::vector<Epoch>* epochs : {&writes, &reads, &seconds}) {
    std::vector<Epoch> all(epochs->size() * parts);
    for (u32 i = 0; i < all.size(); ++i) all[i] = (*epochs)[i / parts];
    *epochs = std::move(all);
  }
  std::unordered_map<u32, std::vector<Epoch>> all;
  for (const auto& [index, epochs] : others)
    for (u32 i = 0; i < parts; ++i) all[index * parts + i] = epochs;
  others = std::move(all);
  unit = smaller;
}

}  // namespace sim
