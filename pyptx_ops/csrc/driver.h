// What the launcher needs of the CUDA driver API (12.0 and newer): its own declarations, so that no toolkit is needed.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUfunction = struct CUfunc_st*;

enum : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_NO_DEVICE = 100,

  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,

  CU_JIT_INFO_LOG_BUFFER = 3,
  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
  CU_JIT_ERROR_LOG_BUFFER = 5,
  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,

  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
  CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
  CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
  CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,

  CU_STREAM_CAPTURE_MODE_RELAXED = 2,

  CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

struct alignas(128) CUtensorMap {
  uint64_t opaque[16];
};

union CUlaunchAttributeValue {
  char bytes[64];
  uint32_t words[16];
  void* pointer;  // gives the union the alignment it has in the driver
};

struct CUlaunchAttribute {
  int id;
  char pad[4];
  CUlaunchAttributeValue value;
};

struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};

static_assert(sizeof(CUtensorMap) == 128 && sizeof(CUlaunchAttribute) == 72 && sizeof(CUlaunchConfig) == 56,
              "the driver's layout");

// X(name, exported symbol, arguments)
#define DRIVER_FUNCTIONS(X)                                                                                      \
  X(Init, "cuInit", (unsigned))                                                                                  \
  X(DriverGetVersion, "cuDriverGetVersion", (int*))                                                              \
  X(GetErrorName, "cuGetErrorName", (CUresult, const char**))                                                    \
  X(GetErrorString, "cuGetErrorString", (CUresult, const char**))                                                \
  X(DeviceGetCount, "cuDeviceGetCount", (int*))                                                                  \
  X(DeviceGet, "cuDeviceGet", (CUdevice*, int))                                                                  \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, CUdevice))                                           \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext*, CUdevice))                                  \
  X(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext*))                                                              \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext))                                                          \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext*))                                                           \
  X(LibraryLoadData, "cuLibraryLoadData",                                                                        \
    (CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned))                                   \
  X(LibraryGetKernel, "cuLibraryGetKernel", (CUkernel*, CUlibrary, const char*))                                 \
  X(KernelGetFunction, "cuKernelGetFunction", (CUfunction*, CUkernel))                                           \
  X(KernelGetAttribute, "cuKernelGetAttribute", (int*, int, CUkernel, CUdevice))                                 \
  X(KernelSetAttribute, "cuKernelSetAttribute", (int, int, CUkernel, CUdevice))                                  \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int*))                                \
  X(TensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                              \
    (CUtensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int, \
     int, int, int))                                                                                             \
  X(TensorMapEncodeIm2col, "cuTensorMapEncodeIm2col",                                                            \
    (CUtensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const int*, const int*, uint32_t,      \
     uint32_t, const uint32_t*, int, int, int, int))                                                             \
  X(LaunchKernelEx, "cuLaunchKernelEx", (const CUlaunchConfig*, CUfunction, void**, void**))
