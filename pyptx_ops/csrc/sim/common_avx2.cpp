#include "forms.h"
#include "numbers.h"
#include "tensor_core.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,bmi,bmi2")
#endif
#define SIM_PATH avx2
#include "common.h"
#include "tensor_block.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
namespace sim::avx2 {
Form common_form(const Ins&) { return {}; }
void decode_block(Type, const u8*, int, int, u32, Block&) {}
u32 multiply_block(const Block&, int, const Block&, int, int, const Precision&, u32*) { return ~0u; }
}  // namespace sim::avx2
#endif
