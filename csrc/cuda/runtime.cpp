// Devices, streams and errors: all that the bindings ask of the CUDA runtime.
#include "common/check.h"
#include "cuda/device.h"
#include "cuda/launch.h"
#include "tvm/ffi/extra/c_env_api.h"

namespace splitserve::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(status) << " ("
                              << cudaGetErrorName(status) << ")";
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

OnDevice::OnDevice(DLDevice device) : current_(device.device_id) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != current_) check(cudaSetDevice(current_), "cudaSetDevice");
  stream_ = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

OnDevice::~OnDevice() {
  // It was current before, so it can be again; a destructor has nobody to tell.
  if (previous_ != current_) static_cast<void>(cudaSetDevice(previous_));
}

namespace {

// 0 also where there is no driver.
int64_t device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

int64_t shared_bytes_limit(int64_t device) {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(device)),
        "cudaDeviceGetAttribute");
  return bytes;
}

}  // namespace
}  // namespace splitserve::cuda

void* splitserve::reachable_host_memory(void* data) {
  cudaPointerAttributes attributes{};
  cuda::check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeHost ? attributes.devicePointer : nullptr;
}

SPLITSERVE_EXPORT(device_count, splitserve::cuda::device_count);
SPLITSERVE_EXPORT(shared_bytes_limit, splitserve::cuda::shared_bytes_limit);
