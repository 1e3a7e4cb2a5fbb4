#include "machine.h"
#include "numbers.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,bmi,bmi2")
#endif
#define SIM_PATH avx2
#include "common.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
namespace sim::avx2 {
Form common_form(const Ins&) { return {}; }
}  // namespace sim::avx2
#endif
