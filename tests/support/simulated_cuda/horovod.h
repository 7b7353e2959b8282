// Headers that most files of Horovod include, compiled once.

#include <cstdint>

#include "logging.h"

#include "global_state.h"
#include "operations.h"
#include "ops/nccl_operations.h"
