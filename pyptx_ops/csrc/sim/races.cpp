// Who may touch shared memory when: vector clocks of warps and of what they started.
//
// Actors of a cluster: its warps, each warp's wgmmas, and each mbarrier, whose clock is its phase and stands for the
// copies that report to it. A warp knows up to which clock of every actor it may rely on (`seen`), and for which of
// those writes a proxy fence has been passed (`proxied`), so that the asynchronous proxy sees them too. Knowledge
// travels through barriers. A word remembers its last write and who has read it since.
#include <algorithm>

#include "machine.h"

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
}

void Clock::reach(u32 actor, u32 clock) {
  raise(seen, actor, clock);
  raise(proxied, actor, clock);
}

Shadow::Shadow(u32 bytes, u32 cluster_warps, u32 own_warps)
    : writes(bytes / WORD + 1),
      reads(static_cast<u32*>(std::calloc(static_cast<size_t>(bytes / WORD + 1) * cluster_warps, sizeof(u32))),
            std::free),
      fetches(static_cast<u32*>(std::calloc(static_cast<size_t>(bytes / CHUNK + 1) * own_warps, sizeof(u32))),
              std::free),
      cluster_warps(cluster_warps),
      own_warps(own_warps) {
  if (!reads || !fetches) throw std::bad_alloc();
}

std::string Machine::name_of(const Cluster& cluster, u32 actor) const {
  u32 each = static_cast<u32>(cluster.ctas[0].warps.size()), warps = each * static_cast<u32>(cluster.ctas.size());
  if (actor >= 2 * warps) return "a copy";
  std::string text = actor >= warps ? "a wgmma of warp " : "warp ";
  actor %= warps;
  text += std::to_string(actor % each);
  return cluster.ctas.size() > 1 ? text + " of CTA " + std::to_string(actor / each) + " of the cluster" : text;
}

// What a warp has done is known to whoever waits for this.
void Machine::release(Warp& warp, Clock& into) {
  into.learn(warp.now);
  raise(warp.now.seen, warp.actor, at(warp.now.seen, warp.actor) + 1);
}

// Everything that the warp relies on becomes visible to the asynchronous proxy.
void Machine::fence_proxy(Warp& warp) {
  join(warp.now.proxied, warp.now.seen);
  raise(warp.now.seen, warp.actor, at(warp.now.seen, warp.actor) + 1);
}

void Machine::race(Cta& cta, u32 word, const char* what, u32 actor, const char* did, int line) {
  Problem problem("race", std::string("shared memory offset ") + std::to_string(word * WORD) +
                              (cta.cluster->ctas.size() > 1 ? " of CTA " + std::to_string(cta.rank) : "") + " is " +
                              what + ", and nothing orders that after " + name_of(*cta.cluster, actor) + " " + did +
                              " it");
  if (line) problem.others.emplace_back(line, name_of(*cta.cluster, actor) + " " + did + " it");
  throw problem;
}

void Machine::after_write(Cta& cta, const Clock& clock, u32 word, const char* what, bool through_async) {
  const Shadow::Write& last = cta.shadow->writes[word];
  if (!last.line) return;
  if (at(clock.seen, last.actor) < last.clock) race(cta, word, what, last.actor, "wrote", last.line);
  if (through_async && !last.async && at(clock.proxied, last.actor) < last.clock) {
    Problem problem("missing proxy fence", std::string("shared memory offset ") + std::to_string(word * WORD) + " is " +
                                               what +
                                               " through the asynchronous proxy; it was written through the generic "
                                               "one, and no fence.proxy.async lies between");
    problem.others.emplace_back(last.line, name_of(*cta.cluster, last.actor) + " wrote it");
    throw problem;
  }
}

// Everybody who has read the word is done; a write of `own` needs no order with its own reads.
void Machine::after_reads(Cta& cta, const Clock& clock, u32 word, const char* what, u32 own) {
  Shadow& shadow = *cta.shadow;
  u32* reads = shadow.reads.get() + static_cast<size_t>(word) * shadow.cluster_warps;
  for (u32 w = 0; w < shadow.cluster_warps; ++w)
    if (reads[w] && w != own && at(clock.seen, w) < reads[w]) race(cta, word, what, w, "read", 0);
  u32* fetches = shadow.fetches.get() + static_cast<size_t>(word / (CHUNK / WORD)) * shadow.own_warps;
  for (u32 w = 0; w < shadow.own_warps; ++w) {
    u32 actor = shadow.cluster_warps + cta.rank * shadow.own_warps + w;
    if (!fetches[w] || at(clock.seen, actor) >= fetches[w]) continue;
    const auto& log = cta.wgmma_log[w / 4];
    race(cta, word, what, actor, "read", static_cast<int>(log[fetches[w] - 1][0]));
  }
}

void Machine::observe(Warp& warp, Cta& cta, u32 offset, u32 bytes, bool write, int line) {
  if (bytes < WORD) return;  // words are told apart, not the bytes in them
  Shadow& shadow = *cta.shadow;
  for (const Copy& copy : copies_) {
    bool stores = copy.kind == Copy::tensor_store || copy.kind == Copy::bulk_store;
    if (!write || !stores || !copy.snapshot.empty() || copy.cta != &cta) continue;
    if (offset + bytes <= copy.shared || copy.shared + copy.bytes <= offset) continue;
    Problem problem("copy in flight", "shared memory offset " + std::to_string(offset - SHARED_BASE) +
                                          " is written while a store that was not waited for still reads it");
    problem.others.emplace_back(copy.ins->line, "the store");
    throw problem;
  }
  u32 first = (offset - SHARED_BASE) / WORD, last = (offset - SHARED_BASE + bytes - 1) / WORD;
  for (u32 word = first; word <= last; ++word) {
    after_write(cta, warp.now, word, write ? "written" : "read", false);
    if (write) {
      after_reads(cta, warp.now, word, "written", warp.actor);
      shadow.writes[word] = {at(warp.now.seen, warp.actor), static_cast<u16>(warp.actor), false, line};
    } else {
      shadow.reads[static_cast<size_t>(word) * shadow.cluster_warps + warp.actor] = at(warp.now.seen, warp.actor);
    }
  }
}

void Machine::observe_copy(Warp& warp, Cta& cta, u32 offset, u64 bytes, const MBarrier& barrier, int line) {
  u32 first = (offset - SHARED_BASE) / WORD, count = static_cast<u32>(bytes / WORD);
  for (u32 word = first; word < first + count && word < cta.shadow->writes.size(); ++word) {
    after_write(cta, warp.now, word, "overwritten by a copy", false);
    after_reads(cta, warp.now, word, "overwritten by a copy", ~0u);
    cta.shadow->writes[word] = {static_cast<u32>(barrier.phase) + 1, static_cast<u16>(barrier.actor), true, line};
  }
}

// number: of the wgmma among its warp's, from 1; 0 for a copy.
void Machine::observe_fetch(const Warp& warp, Cta& cta, const Clock& clock, u32 offset, u32 bytes, u32 number) {
  u32 first = (offset - SHARED_BASE) / WORD;
  for (u32 word = first; word < first + bytes / WORD; ++word) after_write(cta, clock, word, "read", true);
  if (number)
    for (u32 chunk = first * WORD / CHUNK; chunk < (first * WORD + bytes) / CHUNK; ++chunk)
      cta.shadow->fetches[static_cast<size_t>(chunk) * cta.shadow->own_warps + static_cast<u32>(warp.index)] = number;
}

// A barrier may be used by those who know that it was initialised; by copies and other CTAs after its own fence.
void Machine::observe_barrier(Warp& warp, Cta& cta, const MBarrier& barrier, bool from_afar) {
  if (at(warp.now.seen, barrier.initialiser) < barrier.initialised) {
    Problem problem("race", "an mbarrier is used, and nothing orders that after its initialisation");
    problem.others.emplace_back(barrier.line, name_of(*cta.cluster, barrier.initialiser) + " initialised it");
    throw problem;
  }
  if (!from_afar || barrier.published) return;
  Problem problem(
      "missing fence.mbarrier_init",
      "an mbarrier is used by a copy or another CTA, and no fence.mbarrier_init follows its initialisation");
  problem.others.emplace_back(barrier.line, name_of(*cta.cluster, barrier.initialiser) + " initialised it");
  throw problem;
}

}  // namespace sim
