// Checks and binding of whole_attention.
#include "common/whole_attention.h"

#include "common/device_args.h"

namespace splitserve {
namespace {

void check_alignment(const TensorView& tensor, const char* name, const WholeAttentionParams& p) {
  int64_t begins = reinterpret_cast<intptr_t>(tensor.data_ptr());
  for (int dim = 0; dim < 2; ++dim) {
    if (tensor.size(dim) > 1) begins |= tensor.stride(dim) * dtype_bytes(p.dtype);
  }
  SPLITSERVE_CHECK_VALUE(begins % kHeadRowBytes == 0,
                         name << ": rows must begin at multiples of " << kHeadRowBytes << " bytes");
}

HeadTensor heads_of(const DeviceArgs& args, const TensorView& tensor, const char* name, int64_t heads,
                    const WholeAttentionParams& p) {
  args(tensor, name)
      .activation(p.dtype)
      .rank(3)
      .size(0, p.tokens)
      .size(1, heads)
      .size(2, p.head_dim)
      .rows_contiguous();
  check_alignment(tensor, name, p);
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1)};
}

[[maybe_unused]] void check_lengths(const WholeAttentionParams& p) {
  SPLITSERVE_CHECK_VALUE(p.cu_seqlens[0] == 0 && p.cu_seqlens[p.sequences] == p.tokens,
                         "cu_seqlens: must run from 0 to the " << p.tokens << " rows of q");
  for (int64_t i = 0; i < p.sequences; ++i)
    SPLITSERVE_CHECK_VALUE(p.cu_seqlens[i + 1] >= p.cu_seqlens[i], "cu_seqlens: decreases at sequence " << i);
}

void whole_attention(TensorView out, TensorView q, TensorView k, TensorView v, TensorView cu_seqlens,
                     double scale, int64_t reach) {
  const DeviceArgs args(q, "q");
  WholeAttentionParams params{};
  params.dtype = args(q, "q").rank(3).activation();
  params.tokens = q.size(0);
  params.heads = q.size(1);
  params.head_dim = q.size(2);
  SPLITSERVE_CHECK_VALUE(params.head_dim >= 8 && params.head_dim <= kMaxWholeDim && params.head_dim % 8 == 0,
                         "q: head size must be a multiple of 8 up to 256, got " << params.head_dim);
  args(k, "k").rank(3);
  params.kv_heads = k.size(1);
  SPLITSERVE_CHECK_VALUE(
      params.kv_heads > 0 && params.heads % params.kv_heads == 0,
      "q: " << params.heads << " heads are not a multiple of " << params.kv_heads << " KV heads");
  params.q = heads_of(args, q, "q", params.heads, params);
  params.k = heads_of(args, k, "k", params.kv_heads, params);
  params.v = heads_of(args, v, "v", params.kv_heads, params);
  SPLITSERVE_CHECK_VALUE(
      params.k.token_stride == params.v.token_stride && params.k.head_stride == params.v.head_stride,
      "v: strides differ from k");
  const HeadTensor to = heads_of(args, out, "out", params.heads, params);
  params.out = out.data_ptr();
  params.out_token_stride = to.token_stride;
  params.out_head_stride = to.head_stride;
  args(cu_seqlens, "cu_seqlens").rank(1);
  SPLITSERVE_CHECK_VALUE(cu_seqlens.size(0) > 0, "cu_seqlens: is empty");
  params.sequences = cu_seqlens.size(0) - 1;
  params.cu_seqlens = args(cu_seqlens, "cu_seqlens").vector(kInt32Type, params.sequences + 1).data<int32_t>();
  SPLITSERVE_CHECK_VALUE(scale > 0.0 && scale < 1e6, "scale: must be positive and finite, got " << scale);
  SPLITSERVE_CHECK_VALUE(reach >= 0, "reach: negative");
  params.scale = static_cast<float>(scale);
  params.reach = reach;
  SPLITSERVE_RUN_CHECKED(whole_attention, check_lengths, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(whole_attention, splitserve::whole_attention);
