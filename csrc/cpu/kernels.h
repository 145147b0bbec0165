// The CPU kernels behind the bindings that all devices share.
#pragma once

#include "common/activation.h"
#include "common/edit_logits.h"
#include "common/kv_write.h"
#include "common/move_blocks.h"
#include "common/norm.h"
#include "common/rotary.h"
#include "cpu/isa.h"

SPLITSERVE_DECLARE_VECTOR(activation, ActivationParams)
SPLITSERVE_DECLARE_VECTOR(edit_logits, EditLogitsParams)
SPLITSERVE_DECLARE_VECTOR(kv_write, KvWriteParams)
SPLITSERVE_DECLARE_VECTOR(layer_norm, NormParams)
SPLITSERVE_DECLARE_VECTOR(move_blocks, MoveParams)
SPLITSERVE_DECLARE_VECTOR(rms_norm, NormParams)
SPLITSERVE_DECLARE_VECTOR(rotary_embedding, RotaryParams)
SPLITSERVE_DECLARE_VECTOR(rotary_kv_write, RotaryKvWriteParams)
