// In what form the weights of a linear layer are kept.
#pragma once

namespace splitserve {

enum class WeightFormat {
  kFloat32,
  kBFloat16,
  kInt8,
  kInt4,
  kMxfp4,
  kInt8Groups,
  kFp8Groups,
  kInt4Groups,
  kInt6Groups,
  kInt8Dot
};

}  // namespace splitserve
