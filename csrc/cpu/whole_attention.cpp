// Checks and binding of whole_attention.
#include "cpu/whole_attention.h"

#include "common/check.h"
#include "cpu/attention.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

HeadTensor heads_of(const TensorView& tensor, const char* name, int64_t heads,
                    const WholeAttentionParams& p) {
  cpu_arg(tensor, name)
      .activation(p.dtype)
      .rank(3)
      .size(0, p.tokens)
      .size(1, heads)
      .size(2, p.head_dim)
      .rows_contiguous();
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1)};
}

void check_lengths(const WholeAttentionParams& p) {
  SPLITSERVE_CHECK_VALUE(p.cu_seqlens[0] == 0 && p.cu_seqlens[p.sequences] == p.tokens,
                         "cu_seqlens: must run from 0 to the " << p.tokens << " rows of q");
  for (int64_t i = 0; i < p.sequences; ++i)
    SPLITSERVE_CHECK_VALUE(p.cu_seqlens[i + 1] >= p.cu_seqlens[i], "cu_seqlens: decreases at sequence " << i);
}

void whole_attention(TensorView out, TensorView q, TensorView k, TensorView v, TensorView cu_seqlens,
                     double scale, int64_t reach) {
  WholeAttentionParams params{};
  params.dtype = cpu_arg(q, "q").rank(3).activation();
  params.tokens = q.size(0);
  params.heads = q.size(1);
  params.head_dim = q.size(2);
  SPLITSERVE_CHECK_VALUE(params.head_dim >= 8 && params.head_dim <= kMaxHeadDim && params.head_dim % 8 == 0,
                         "q: head size must be a multiple of 8 up to 256, got " << params.head_dim);
  cpu_arg(k, "k").rank(3);
  params.kv_heads = k.size(1);
  SPLITSERVE_CHECK_VALUE(
      params.kv_heads > 0 && params.heads % params.kv_heads == 0,
      "q: " << params.heads << " heads are not a multiple of " << params.kv_heads << " KV heads");
  params.q = heads_of(q, "q", params.heads, params);
  params.k = heads_of(k, "k", params.kv_heads, params);
  params.v = heads_of(v, "v", params.kv_heads, params);
  const HeadTensor to = heads_of(out, "out", params.heads, params);
  params.out = out.data_ptr();
  params.out_token_stride = to.token_stride;
  params.out_head_stride = to.head_stride;
  cpu_arg(cu_seqlens, "cu_seqlens").rank(1);
  SPLITSERVE_CHECK_VALUE(cu_seqlens.size(0) > 0, "cu_seqlens: is empty");
  params.sequences = cu_seqlens.size(0) - 1;
  params.cu_seqlens =
      cpu_arg(cu_seqlens, "cu_seqlens").vector(kInt32Type, params.sequences + 1).data<int32_t>();
  SPLITSERVE_CHECK_VALUE(scale > 0.0 && scale < 1e6, "scale: must be positive and finite, got " << scale);
  SPLITSERVE_CHECK_VALUE(reach >= 0, "reach: negative");
  params.scale = static_cast<float>(scale);
  params.reach = reach;
  run_kernel(params, [](const WholeAttentionParams& p) {
    check_lengths(p);
    SPLITSERVE_CALL_KERNEL(whole_attention, p);
  });
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(whole_attention, splitserve::whole_attention);
