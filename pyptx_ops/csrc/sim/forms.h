// Where the forms of arithmetic instructions come from: each of these answers for its own operations.
#pragma once

#include "program.h"

namespace sim {

namespace portable {
Form common_form(const Ins& ins);
}
namespace avx2 {
Form common_form(const Ins& ins);
}

Form integer_form(const Ins& ins);
Form bit_form(const Ins& ins);
Form carry_form(const Ins& ins);
Form float_form(const Ins& ins);
Form half_form(const Ins& ins);
Form approximate_form(const Ins& ins);
Form compare_form(const Ins& ins);
Form convert_form(const Ins& ins);

// Whether the copy for AVX2 and FMA is used: where the processor has them, unless it is turned off.
bool vectors();
void use_vectors(bool wanted);

bool is_arithmetic(Op op);
// The form of an instruction; one without a function where the machine does not have it.
Form form_of(const Ins& ins);
// Finds the form of an instruction and where its operands lie. Raises Problem where the machine does not have it.
void settle(Ins& ins, const Program& program);

}  // namespace sim
