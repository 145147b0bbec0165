// Activations of one register, with and without what they gate; fp32 inside.
#pragma once

#include "cpu/gelu.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

struct SiluAndMul {
  static constexpr bool kHasTwoInputs = true;

  static Vec apply(Vec gate, Vec up, float) { return gate * sigmoid(gate) * up; }
};

template <typename T>
struct Gelu {
  static constexpr bool kHasTwoInputs = false;

  static Vec apply(Vec x, Vec, float) { return gelu(x, static_cast<const T*>(nullptr)); }
};

struct GeluTanh {
  static constexpr bool kHasTwoInputs = false;

  static Vec apply(Vec x, Vec, float) { return gelu_tanh(x); }
};

template <typename T>
struct GeluAndMul {
  static constexpr bool kHasTwoInputs = true;

  static Vec apply(Vec gate, Vec up, float factor) { return Gelu<T>::apply(gate, up, factor) * up; }
};

struct GeluTanhAndMul {
  static constexpr bool kHasTwoInputs = true;

  static Vec apply(Vec gate, Vec up, float factor) { return GeluTanh::apply(gate, up, factor) * up; }
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
