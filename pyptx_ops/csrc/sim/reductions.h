// What atomics and reductions make of a value in memory.
#pragma once

#include "program.h"

namespace sim {

// The new value of an element. flush: f32 sums take subnormals for zeros, as those in global memory do.
u64 reduced(Word op, Type type, u64 was, u64 x, bool flush = false);

}  // namespace sim
