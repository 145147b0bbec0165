// How a finished sum of a linear layer becomes an output: with a bias, in the dtype of the outputs.
#pragma once

#include <cuda_runtime.h>

#include "common/dtype.h"
#include "common/half.h"

namespace splitserve::cuda {

// Element i of a tensor of activations.
__device__ inline float load_float(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[i];
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(data)[i]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(data)[i]);
  }
  return 0.0f;
}

__device__ inline void store_float(void* data, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[i] = value;
      break;
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[i] = to<BFloat16>(value);
      break;
    case DType::kFloat16:
      static_cast<Float16*>(data)[i] = to<Float16>(value);
      break;
  }
}

// Elements i to i + 3, which lie at a multiple of their size.
__device__ inline void store_four(void* data, DType dtype, int64_t i, const float (&values)[4]) {
  switch (dtype) {
    case DType::kFloat32:
      *reinterpret_cast<float4*>(static_cast<float*>(data) + i) = {values[0], values[1], values[2],
                                                                   values[3]};
      break;
    case DType::kBFloat16:
      *reinterpret_cast<uint2*>(static_cast<BFloat16*>(data) + i) = {
          pack_pair<BFloat16>(values[0], values[1]), pack_pair<BFloat16>(values[2], values[3])};
      break;
    case DType::kFloat16:
      *reinterpret_cast<uint2*>(static_cast<Float16*>(data) + i) = {pack_pair<Float16>(values[0], values[1]),
                                                                    pack_pair<Float16>(values[2], values[3])};
      break;
  }
}

}  // namespace splitserve::cuda
