#include "forms.h"
#include "numbers.h"
#include "tensor_core.h"

#define SIM_PATH portable
#include "common.h"
#include "tensor_block.h"
