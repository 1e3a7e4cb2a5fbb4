#include "machine.h"
#include "numbers.h"

#define SIM_PATH portable
#include "common.h"
