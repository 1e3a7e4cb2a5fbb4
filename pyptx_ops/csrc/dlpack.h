// What the launcher needs of DLPack's C exchange API (major version 1): how a framework shows its tensors to C code
// without Python. Its own declarations, so that no header of a framework is needed.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr const char* DLPACK_CAPSULE = "dlpack_exchange_api";
constexpr uint32_t DLPACK_MAJOR = 1;
constexpr int DLPACK_CUDA = 2;    // device type
constexpr int DLPACK_BFLOAT = 4;  // type code

struct DLDevice {
  int32_t type, index;
};

struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape, *strides;  // in elements; may be null where ndim is 0
  uint64_t byte_offset;
};

struct DLExchangeApi {
  uint32_t major, minor;
  const DLExchangeApi* previous;  // an older version, or null
  void *allocate, *managed_from_object, *managed_to_object;
  // Both give 0, or -1 with a Python exception. A tensor's shape and strides stay the framework's.
  int (*tensor_from_object)(void* object, DLTensor* out);
  int (*current_stream)(int32_t device_type, int32_t device, void** out);
};

static_assert(sizeof(DLTensor) == 48 && offsetof(DLExchangeApi, tensor_from_object) == 40, "DLPack's layout");
