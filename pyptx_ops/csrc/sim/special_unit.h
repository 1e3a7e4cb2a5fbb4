// The special-function unit as Hopper has it, bit for bit: see special_unit.cpp.
#pragma once

#include "program.h"

namespace sim {

// From the bits of an f32 to those of the result. Subnormals are zeros (to tanh they are themselves).
u32 unit_rcp(u32 x);
u32 unit_rsqrt(u32 x);
u32 unit_sqrt(u32 x);
u32 unit_ex2(u32 x);
u32 unit_lg2(u32 x);
u32 unit_tanh(u32 x);
u32 unit_sin(u32 turns);
u32 unit_cos(u32 turns);

// From the upper word of an f64 to the upper word of the result.
u32 unit_rcp64(u32 high);
u32 unit_rsqrt64(u32 high);

}  // namespace sim
