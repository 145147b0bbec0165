// The CPU kernels behind the bindings that all devices share.
#pragma once

#include "common/activation.h"
#include "common/edit_logits.h"
#include "common/experts.h"
#include "common/grouped_route.h"
#include "common/kv_write.h"
#include "common/latent_write.h"
#include "common/lora.h"
#include "common/move_blocks.h"
#include "common/norm.h"
#include "common/pool_rows.h"
#include "common/rotate_heads.h"
#include "common/sum_parts.h"
#include "common/whole_attention.h"
#include "cpu/isa.h"

SPLITSERVE_DECLARE_KERNEL(activation, ActivationParams)
SPLITSERVE_DECLARE_KERNEL(clamped_swiglu, ClampedSwigluParams)
SPLITSERVE_DECLARE_KERNEL(combine_experts, CombineExpertsParams)
SPLITSERVE_DECLARE_KERNEL(edit_logits, EditLogitsParams)
SPLITSERVE_DECLARE_KERNEL(grouped_route, GroupedRouteParams)
SPLITSERVE_DECLARE_KERNEL(kv_write, KvWriteParams)
SPLITSERVE_DECLARE_KERNEL(latent_write, LatentWriteParams)
SPLITSERVE_DECLARE_KERNEL(layer_norm, NormParams)
SPLITSERVE_DECLARE_TILE_KERNEL(lora, LoraParams)
SPLITSERVE_DECLARE_KERNEL(move_blocks, MoveParams)
SPLITSERVE_DECLARE_KERNEL(pool_rows, PoolRowsParams)
SPLITSERVE_DECLARE_KERNEL(rms_norm, NormParams)
SPLITSERVE_DECLARE_KERNEL(rotate_heads, RotateHeadsParams)
SPLITSERVE_DECLARE_KERNEL(rotary_kv_write, RotaryKvWriteParams)
SPLITSERVE_DECLARE_KERNEL(route, RouteParams)
SPLITSERVE_DECLARE_KERNEL(spread_rows, SpreadRowsParams)
SPLITSERVE_DECLARE_KERNEL(sum_parts, SumPartsParams)
SPLITSERVE_DECLARE_TILE_KERNEL(whole_attention, WholeAttentionParams)
