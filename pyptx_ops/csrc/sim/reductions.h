// What atomics and reductions make of a value in memory.
#pragma once

#include "program.h"

namespace sim {

// The new value of an element. memory: as global memory adds: f32 sums take subnormals for zeros, a NaN of f64 stays.
u64 reduced(Word op, Type type, u64 was, u64 x, bool memory = false);

}  // namespace sim
