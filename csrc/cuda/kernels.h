// The CUDA kernels, each enqueued on a stream; defined in csrc/cuda/kernels.
//
// They neither allocate nor wait, so a graph can capture them. A launch that fails raises.
#pragma once

#include <cuda_runtime.h>

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
#include "cuda/attention.h"
#include "cuda/coded_linear.h"
#include "cuda/embedding.h"
#include "cuda/expert_linear.h"
#include "cuda/latent_attention.h"
#include "cuda/sampling.h"

namespace splitserve::cuda {

// Of a thread block of paged_attention in 16-bit types, static and dynamic.
int64_t attention_shared_bytes(int head_dim);
// Of these, as many as the current device runs at once.
int64_t attention_thread_blocks(int head_dim);
// Of a thread block of latent_attention in 16-bit types.
int64_t latent_shared_bytes();

void activation(const ActivationParams& params, cudaStream_t stream);
void apply_penalties(const PenaltyParams& params, cudaStream_t stream);
void clamped_swiglu(const ClampedSwigluParams& params, cudaStream_t stream);
void code_rows(const CodeRowsParams& params, cudaStream_t stream);
void coded_dense(const CodedDenseParams& params, cudaStream_t stream);
void coded_embedding(const CodedEmbeddingParams& params, cudaStream_t stream);
void coded_linear_bfloat16(const CodedLinearParams& params, cudaStream_t stream);
void coded_linear_dot(const CodedLinearParams& params, cudaStream_t stream);
void coded_linear_float16(const CodedLinearParams& params, cudaStream_t stream);
void coded_wide_bfloat16(const CodedLinearParams& params, cudaStream_t stream);
void coded_wide_dot(const CodedLinearParams& params, cudaStream_t stream);
void coded_wide_float16(const CodedLinearParams& params, cudaStream_t stream);
void combine_experts(const CombineExpertsParams& params, cudaStream_t stream);
void edit_logits(const EditLogitsParams& params, cudaStream_t stream);
void embedding(const EmbeddingParams& params, cudaStream_t stream);
void expert_linear(const ExpertLinearParams& params, cudaStream_t stream);
void grouped_route(const GroupedRouteParams& params, cudaStream_t stream);
void kv_write(const KvWriteParams& params, cudaStream_t stream);
void kv_write_codes(const KvWriteParams& params, cudaStream_t stream);
void latent_attention_bfloat16(const LatentAttentionParams& params, cudaStream_t stream);
void latent_attention_float(const LatentAttentionParams& params, cudaStream_t stream);
void latent_attention_float16(const LatentAttentionParams& params, cudaStream_t stream);
void latent_write(const LatentWriteParams& params, cudaStream_t stream);
void layer_norm(const NormParams& params, cudaStream_t stream);
void lora(const LoraParams& params, cudaStream_t stream);
void merge_attention(const AttentionParams& params, cudaStream_t stream);
void move_blocks(const MoveParams& params, cudaStream_t stream);
void paged_attention_bfloat16(const AttentionParams& params, cudaStream_t stream);
void paged_attention_codes(const AttentionParams& params, cudaStream_t stream);
void paged_attention_float(const AttentionParams& params, cudaStream_t stream);
void paged_attention_float16(const AttentionParams& params, cudaStream_t stream);
// The part of a choice of experts that is the same for all rules: where each slot goes.
void place_slots(const RouteParams& params, cudaStream_t stream);
void plan_attention(const PlanParams& params, cudaStream_t stream);
void pool_rows(const PoolRowsParams& params, cudaStream_t stream);
void rms_norm(const NormParams& params, cudaStream_t stream);
void rotate_heads(const RotateHeadsParams& params, cudaStream_t stream);
void rotary_kv_write(const RotaryKvWriteParams& params, cudaStream_t stream);
void route(const RouteParams& params, cudaStream_t stream);
void sample(const SampleParams& params, cudaStream_t stream);
void spread_rows(const SpreadRowsParams& params, cudaStream_t stream);
void sum_parts(const SumPartsParams& params, cudaStream_t stream);
void token_logprobs(const TokenLogprobsParams& params, cudaStream_t stream);
void top_logprobs(const LogprobsParams& params, cudaStream_t stream);
void whole_attention(const WholeAttentionParams& params, cudaStream_t stream);
void whole_attention_bfloat16(const AttentionParams& params, cudaStream_t stream);
void whole_attention_float(const AttentionParams& params, cudaStream_t stream);
void whole_attention_float16(const AttentionParams& params, cudaStream_t stream);

}  // namespace splitserve::cuda
