// Acquire and release at an address, and fences: what they order, and for whom.
#include <algorithm>

#include "machine.h"

namespace sim {
namespace {

// Whether a warp of this CTA takes what was released at `message.scope` when it acquires at `scope`.
bool reaches(const Message& message, const Cta& cta, u32 scope) {
  if (message.cluster != cta.cluster->number) return std::min(message.scope, scope) >= 3;
  return message.cta == cta.rank || std::min(message.scope, scope) >= 2;
}

Clock& message_of(std::vector<Message>& messages, u32 cluster, u32 cta, u32 scope) {
  for (Message& message : messages)
    if (message.cluster == cluster && message.cta == cta && message.scope == scope) return message.clock;
  messages.push_back({cluster, cta, scope, Clock()});
  return messages.back().clock;
}

}  // namespace

// Clocks are those of a cluster: what another one knows is kept apart, but for what it knows of this one.
void Machine::take(Warp& warp, u32 lanes, const Message& message) {
  u32 own = warp.cta->cluster->number;
  if (message.cluster == own) {
    acquire(warp, lanes, message.clock);
    return;
  }
  warp.now.learn_elsewhere(message.cluster, message.clock);
  if (message.clock.elsewhere)
    for (const auto& [cluster, clock] : *message.clock.elsewhere) {
      if (cluster == own)
        acquire(warp, lanes, clock);
      else
        warp.now.learn_elsewhere(cluster, clock);
    }
  warp.shot.reset();
}

// An atomic access, or a load or store with an order, by one lane. A relaxed one hands over what fences order.
void Machine::order_access(Warp& warp, const Ins& ins, u32 lanes, const u8* place) {
  if (!(ins.order & STRONG)) return;
  std::vector<Message>& messages = addresses_[place];
  if (ins.op != Op::st)
    for (const Message& message : std::vector<Message>(messages)) {
      if (!reaches(message, *warp.cta, ins.scope())) continue;
      if (ins.order & ACQUIRE)
        take(warp, lanes, message);
      else
        message_of(warp.heard, message.cluster, message.cta, message.scope).learn(message.clock);
    }
  if (ins.op == Op::ld) return;
  u32 cluster = warp.cta->cluster->number, cta = warp.cta->rank;
  if (ins.order & RELEASE) release(warp, lanes, message_of(messages, cluster, cta, ins.scope()));
  for (const auto& [scope, clock] : warp.announced)
    message_of(messages, cluster, cta, std::min(ins.scope(), scope)).learn(clock);
}

void Machine::fence(Warp& warp, const Ins& ins, u32 lanes) {
  if (ins.order & ACQUIRE) {
    for (const Message& message : warp.heard)
      if (reaches(message, *warp.cta, ins.scope())) take(warp, lanes, message);
  }
  if (ins.order & RELEASE) release(warp, lanes, warp.announced[ins.scope()]);
}

}  // namespace sim
