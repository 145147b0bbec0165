// Checks and bindings of plan_attention and paged_attention on the GPU.
#include "cuda/attention.h"

#include "common/device_args.h"
#include "cuda/kernels.h"

namespace splitserve {
namespace {

constexpr int64_t kMaxHeadDim = 256;

void check_heads(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  SPLITSERVE_CHECK_VALUE(head_dim >= 8 && head_dim <= kMaxHeadDim && head_dim % 8 == 0,
                         "q: head size must be a multiple of 8 up to 256, got " << head_dim);
  SPLITSERVE_CHECK_VALUE(kv_heads > 0 && heads > 0 && heads % kv_heads == 0,
                         "q: " << heads << " heads are not a multiple of " << kv_heads << " KV heads");
}

// Tiles of all requests, and the segments of those that may split, which have one tile each.
int64_t attention_plan_size(int64_t tokens, int64_t requests, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, int64_t max_seq_len) {
  check_heads(heads, kv_heads, head_dim);
  SPLITSERVE_CHECK_VALUE(tokens >= 0 && requests >= 0 && max_seq_len > 0 && max_seq_len < INT32_MAX,
                         "tokens, requests, max_seq_len: out of range");
  const int64_t segments = (max_seq_len + kSegment - 1) / kSegment;
  const int64_t tiles = tokens * (heads / kv_heads) / large_rows(static_cast<int>(head_dim)) + requests;
  return AttentionPlan::kHeaderWords + AttentionPlan::kItemWords * (requests + tiles + requests * segments);
}

int64_t attention_shared_bytes(int64_t head_dim) {
  check_heads(1, 1, head_dim);
  return cuda::attention_shared_bytes(static_cast<int>(head_dim));
}

AttentionPlan plan_of(const DeviceArgs& args, const TensorView& plan, int64_t requests) {
  args(plan, "plan").rank(1).type({kInt32Type}).rows_contiguous();
  const int64_t items = (plan.size(0) - AttentionPlan::kHeaderWords) / AttentionPlan::kItemWords - requests;
  SPLITSERVE_CHECK_VALUE(items > 0 || requests == 0, "plan: too small for " << requests << " requests");
  return {static_cast<int32_t*>(plan.data_ptr()), static_cast<int32_t>(requests),
          static_cast<int32_t>(items)};
}

// Copies move 16 bytes at a time, other accesses fewer.
void check_alignment(const TensorView& tensor, const char* name, DType dtype, int64_t bytes) {
  bool is_aligned = reinterpret_cast<uintptr_t>(tensor.data_ptr()) % static_cast<uintptr_t>(bytes) == 0;
  for (int dim = 0; dim + 1 < tensor.ndim(); ++dim) {
    is_aligned &= tensor.stride(dim) * dtype_bytes(dtype) % bytes == 0;
  }
  SPLITSERVE_CHECK_VALUE(is_aligned, name << ": rows must begin at multiples of " << bytes << " bytes");
}

float* partials_of(const DeviceArgs& args, const TensorView& partials, int64_t head_dim) {
  args(partials, "partials").rank(2).type({kFloat32Type}).size(1, partial_stride(static_cast<int>(head_dim)));
  SPLITSERVE_CHECK_VALUE(partials.IsContiguous(), "partials: must be contiguous");
  check_alignment(partials, "partials", DType::kFloat32, 2 * sizeof(float));
  return static_cast<float*>(partials.data_ptr());
}

int32_t window_of(int64_t sliding_window) {
  SPLITSERVE_CHECK_VALUE(sliding_window >= 0, "sliding_window: negative");
  return static_cast<int32_t>(sliding_window < INT32_MAX ? sliding_window : 0);
}

void plan_attention(TensorView plan, TensorView partials, TensorView cu_seqlens_q, TensorView seq_lens,
                    int64_t tokens, int64_t heads, int64_t kv_heads, int64_t max_seq_len,
                    int64_t sliding_window) {
  const DeviceArgs args(plan, "plan");
  args(seq_lens, "seq_lens").rank(1);
  const int64_t requests = seq_lens.size(0);
  args(partials, "partials").rank(2);
  const int64_t head_dim = partials.size(1) - kPartialHeader;
  const int64_t words = attention_plan_size(tokens, requests, heads, kv_heads, head_dim, max_seq_len);
  SPLITSERVE_CHECK_VALUE(plan.size(0) >= words, "plan: needs " << words << " words, has " << plan.size(0));
  PlanParams params{};
  params.plan = plan_of(args, plan, requests);
  partials_of(args, partials, head_dim);
  params.cu_seqlens_q = args(cu_seqlens_q, "cu_seqlens_q").vector(kInt32Type, requests + 1).data<int32_t>();
  params.seq_lens = args(seq_lens, "seq_lens").vector(kInt32Type, requests).data<int32_t>();
  params.group = static_cast<int32_t>(heads / kv_heads);
  params.kv_heads = static_cast<int32_t>(kv_heads);
  params.head_dim = static_cast<int32_t>(head_dim);
  params.max_seq_len = static_cast<int32_t>(max_seq_len);
  params.sliding_window = window_of(sliding_window);
  // Numbers of partial rows are 32 bits wide.
  params.partial_rows = partials.size(0) < INT32_MAX ? partials.size(0) : INT32_MAX;
  SPLITSERVE_RUN(plan_attention, params, args.device());
}

void set_queries(AttentionParams* p, const DeviceArgs& args, const TensorView& out, const TensorView& q,
                 const TensorView& k_cache) {
  p->dtype = args(q, "q").rank(3).rows_contiguous().activation();
  args(k_cache, "k_cache").rank(4);
  check_heads(q.size(1), k_cache.size(1), q.size(2));
  args(out, "out").activation(p->dtype).rank(3).size(0, q.size(0)).size(1, q.size(1)).size(2, q.size(2));
  args(out, "out").rows_contiguous();
  p->tokens = static_cast<int32_t>(q.size(0));
  p->heads = static_cast<int32_t>(q.size(1));
  p->head_dim = static_cast<int32_t>(q.size(2));
  p->kv_heads = static_cast<int32_t>(k_cache.size(1));
  p->group = p->heads / p->kv_heads;
  p->block_size = static_cast<int32_t>(k_cache.size(2));
  p->num_blocks = static_cast<int32_t>(k_cache.size(0));
  SPLITSERVE_CHECK_VALUE(p->block_size > 0, "k_cache: block size is 0");
  constexpr int64_t kPairBytes = 4;
  check_alignment(q, "q", p->dtype, kPairBytes);
  check_alignment(out, "out", p->dtype, kPairBytes);
  p->out = out.data_ptr();
  p->q = q.data_ptr();
  p->out_token_stride = out.stride(0);
  p->out_head_stride = out.stride(1);
  p->q_token_stride = q.stride(0);
  p->q_head_stride = q.stride(1);
}

void set_cache(AttentionParams* p, const DeviceArgs& args, const TensorView& k_cache,
               const TensorView& v_cache) {
  constexpr int64_t kCopyBytes = 16;
  p->format = args(k_cache, "k_cache").rank(4).cache_format(p->dtype);
  const auto check = [&](const TensorView& cache, const char* name) {
    const Arg arg = args(cache, name).type_of(k_cache).rank(4).rows_contiguous();
    for (int dim = 0; dim < 3; ++dim) arg.size(dim, k_cache.size(dim));
    arg.size(3, p->head_dim + scale_bytes(p->format));
    if (p->format == CacheFormat::kPlain) {
      check_alignment(cache, name, p->dtype, kCopyBytes);
    } else {
      arg.coded_by_heads();
    }
    for (int dim = 0; dim < 3; ++dim) {
      SPLITSERVE_CHECK_VALUE(cache.stride(dim) == k_cache.stride(dim),
                             name << ": strides differ from k_cache");
    }
  };
  check(k_cache, "k_cache");
  check(v_cache, "v_cache");
  p->k = k_cache.data_ptr();
  p->v = v_cache.data_ptr();
  p->block_stride = k_cache.stride(0);
  p->head_stride = k_cache.stride(1);
  p->slot_stride = k_cache.stride(2);
}

void run(const AttentionParams& params, DLDevice device) {
  if (params.tokens == 0) return;
  if (params.dtype == DType::kFloat32) {
    SPLITSERVE_RUN(paged_attention_float, params, device);
    return;
  }
  if (params.format != CacheFormat::kPlain) {
    SPLITSERVE_RUN(paged_attention_codes, params, device);
  } else if (params.dtype == DType::kBFloat16) {
    SPLITSERVE_RUN(paged_attention_bfloat16, params, device);
  } else {
    SPLITSERVE_RUN(paged_attention_float16, params, device);
  }
  SPLITSERVE_RUN(merge_attention, params, device);
}

void paged_attention(TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                     TensorView block_tables, TensorView cu_seqlens_q, TensorView seq_lens, double scale,
                     int64_t sliding_window, double softcap, Optional<TensorView> sinks, TensorView plan,
                     TensorView partials) {
  const DeviceArgs args(q, "q");
  AttentionParams params{};
  set_queries(&params, args, out, q, k_cache);
  set_cache(&params, args, k_cache, v_cache);
  args(block_tables, "block_tables").rank(2).type({kInt32Type}).rows_contiguous();
  const int64_t requests = block_tables.size(0);
  params.requests = static_cast<int32_t>(requests);
  params.table_width = static_cast<int32_t>(block_tables.size(1));
  params.block_tables = static_cast<const int32_t*>(block_tables.data_ptr());
  params.block_table_stride = block_tables.stride(0);
  params.cu_seqlens_q = args(cu_seqlens_q, "cu_seqlens_q").vector(kInt32Type, requests + 1).data<int32_t>();
  params.seq_lens = args(seq_lens, "seq_lens").vector(kInt32Type, requests).data<int32_t>();
  SPLITSERVE_CHECK_VALUE(scale > 0.0 && scale < 1e6, "scale: must be positive and finite, got " << scale);
  SPLITSERVE_CHECK_VALUE(softcap >= 0.0, "softcap: negative");
  params.scale = static_cast<float>(scale);
  params.sliding_window = window_of(sliding_window);
  params.softcap = static_cast<float>(softcap);
  if (sinks.has_value()) {
    const TensorView view = *sinks;
    const Arg arg = args(view, "sinks").activation(params.dtype).rank(1).size(0, params.heads);
    params.sinks = arg.rows_contiguous().data<void>();
  }
  params.plan = plan_of(args, plan, requests);
  params.partials = partials_of(args, partials, params.head_dim);
  run(params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(attention_plan_size, splitserve::attention_plan_size);
SPLITSERVE_EXPORT(attention_shared_bytes, splitserve::attention_shared_bytes);
SPLITSERVE_EXPORT(plan_attention, splitserve::plan_attention);
SPLITSERVE_EXPORT(paged_attention, splitserve::paged_attention);
