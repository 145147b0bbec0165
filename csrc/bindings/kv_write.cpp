// Checks and binding of kv_write, alone and after the norms and the rotation of queries and keys.
#include "common/kv_write.h"

#include "common/device_args.h"

namespace splitserve {
namespace {

HeadRows head_rows(const DeviceArgs& args, const TensorView& tensor, const char* name, const TensorView& k,
                   DType dtype) {
  args(tensor, name).activation(dtype).rank(3).size(0, k.size(0)).size(2, k.size(2)).rows_contiguous();
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.size(1)};
}

KvSlots slots_of(const DeviceArgs& args, const TensorView& cache, const char* name,
                 const KvWriteParams& params, const TensorView& like) {
  const Arg arg = args(cache, name);
  arg.type_of(like)
      .rank(4)
      .size(0, like.size(0))
      .size(1, params.k.heads)
      .size(2, like.size(2))
      .size(3, params.head_dim + scale_bytes(params.format))
      .rows_contiguous();
  if (kInterleavedCache) {
    arg.interleaved(params.format);
  } else if (params.format != CacheFormat::kPlain) {
    arg.coded_by_heads();
  }
  return {cache.data_ptr(), cache.stride(0), cache.stride(1), cache.stride(2)};
}

KvWriteParams write_params(const DeviceArgs& args, const TensorView& k, const TensorView& v,
                           const TensorView& k_cache, const TensorView& v_cache,
                           const TensorView& slot_mapping) {
  KvWriteParams params{};
  params.dtype = args(k, "k").rank(3).activation();
  params.tokens = k.size(0);
  params.head_dim = k.size(2);
  params.k = head_rows(args, k, "k", k, params.dtype);
  args(v, "v").rank(3).size(1, k.size(1));
  params.v = head_rows(args, v, "v", k, params.dtype);
  params.format = args(k_cache, "k_cache").rank(4).cache_format(params.dtype);
  params.k_cache = slots_of(args, k_cache, "k_cache", params, k_cache);
  params.v_cache = slots_of(args, v_cache, "v_cache", params, k_cache);
  params.slot_mapping = args(slot_mapping, "slot_mapping").indices(params.tokens);
  params.block_size = k_cache.size(2);
  params.num_slots = k_cache.size(0) * params.block_size;
  return params;
}

const void* norm_of(const DeviceArgs& args, const Optional<TensorView>& weight, const char* name,
                    const KvWriteParams& like) {
  if (!weight.has_value()) return nullptr;
  return args(*weight, name)
      .activation(like.dtype)
      .rank(1)
      .size(0, like.head_dim)
      .rows_contiguous()
      .data<void>();
}

RotaryParams rotary_params(const DeviceArgs& args, const TensorView& positions, const TensorView& cos_sin,
                           const KvWriteParams& write) {
  args(cos_sin, "cos_sin").rank(2).type({kFloat32Type}).rows_contiguous();
  RotaryParams params{};
  params.rot_dim = cos_sin.size(1);
  SPLITSERVE_CHECK_VALUE(params.rot_dim % 2 == 0, "cos_sin: rot_dim must be even, got " << params.rot_dim);
  SPLITSERVE_CHECK_VALUE(write.head_dim >= params.rot_dim,
                         "k: head size " << write.head_dim << " is smaller than rot_dim " << params.rot_dim);
  params.positions = args(positions, "positions").indices(write.tokens);
  params.cos_sin = static_cast<const float*>(cos_sin.data_ptr());
  params.cos_sin_stride = cos_sin.stride(0);
  params.max_pos = cos_sin.size(0);
  return params;
}

[[maybe_unused]] void check_slots(const KvWriteParams& params) {
  for (int64_t token = 0; token < params.tokens; ++token) {
    const int64_t slot = params.slot_mapping[token];
    SPLITSERVE_CHECK_VALUE(slot < params.num_slots, "slot_mapping: " << slot << " is outside the cache's "
                                                                     << params.num_slots << " slots");
  }
}

[[maybe_unused]] void check_both(const RotaryKvWriteParams& params) {
  for (int64_t token = 0; token < params.write.tokens; ++token) {
    const int64_t position = params.rotary.positions[token];
    SPLITSERVE_CHECK_VALUE(
        position >= 0 && position < params.rotary.max_pos,
        "positions: " << position << " is outside cos_sin's " << params.rotary.max_pos << " rows");
  }
  check_slots(params.write);
}

void kv_write(TensorView k, TensorView v, TensorView k_cache, TensorView v_cache, TensorView slot_mapping) {
  const DeviceArgs args(k, "k");
  const KvWriteParams params = write_params(args, k, v, k_cache, v_cache, slot_mapping);
  SPLITSERVE_RUN_CHECKED(kv_write, check_slots, params, args.device());
}

void rotary_kv_write(TensorView q, TensorView k, TensorView v, TensorView positions, TensorView cos_sin,
                     TensorView k_cache, TensorView v_cache, TensorView slot_mapping,
                     Optional<TensorView> q_norm, Optional<TensorView> k_norm, double eps,
                     double norm_offset) {
  const DeviceArgs args(q, "q");
  RotaryKvWriteParams params{};
  params.write = write_params(args, k, v, k_cache, v_cache, slot_mapping);
  params.q = head_rows(args, q, "q", k, params.write.dtype);
  params.rotary = rotary_params(args, positions, cos_sin, params.write);
  params.rotary.q_norm = norm_of(args, q_norm, "q_norm", params.write);
  params.rotary.k_norm = norm_of(args, k_norm, "k_norm", params.write);
  params.rotary.eps = static_cast<float>(eps);
  params.rotary.norm_offset = static_cast<float>(norm_offset);
  SPLITSERVE_RUN_CHECKED(rotary_kv_write, check_both, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(kv_write, splitserve::kv_write);
SPLITSERVE_EXPORT(rotary_kv_write, splitserve::rotary_kv_write);
