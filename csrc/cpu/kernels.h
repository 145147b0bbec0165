// The CPU kernels behind the bindings that all devices share.
#pragma once

#include "common/activation.h"
#include "common/kv_write.h"
#include "common/move_blocks.h"
#include "common/norm.h"
#include "cpu/isa.h"

SPLITSERVE_DECLARE_BF16(activation, ActivationParams)
SPLITSERVE_DECLARE_BF16(kv_write, KvWriteParams)
SPLITSERVE_DECLARE_BF16(layer_norm, NormParams)
SPLITSERVE_DECLARE_BF16(move_blocks, MoveParams)
SPLITSERVE_DECLARE_BF16(rms_norm, NormParams)
SPLITSERVE_DECLARE_BF16(rotary_kv_write, RotaryKvWriteParams)
