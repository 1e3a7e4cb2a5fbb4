// Driver, Library, Kernel: loading and launching through the driver API, with nothing of Python in it.
//
// What has been loaded stays loaded, and contexts stay retained: a captured graph may still hold a kernel when its last
// handle here is gone, and nothing tells when the graph goes.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"

constexpr size_t MAX_PARAMS = 64;       // of a kernel
constexpr size_t MAX_TENSOR_MAPS = 16;  // of them
constexpr int MAX_RANK = 5;             // dimensions of a tensor map
constexpr unsigned DEFAULT_SHARED = 48 * 1024, PORTABLE_CLUSTER = 8;  // past these a kernel has to ask

struct Failure {  // a driver call that failed; true where there is one
  const char* call = nullptr;
  CUresult code = CUDA_SUCCESS;
  size_t param = MAX_PARAMS;  // the tensor map at fault
  explicit operator bool() const { return call != nullptr; }
};

struct Driver {
#define DECLARE(name, symbol, arguments) CUresult(*name) arguments = nullptr;
  DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE
  int devices = 0;

  // Finds the driver's functions; returns what is missing, or nothing.
  std::string open(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* cause = dlerror();
      return std::string("no CUDA driver: tried to load '") + path + "': " + (cause ? cause : "no cause given") +
             "; install an NVIDIA driver";
    }
#define RESOLVE(name, symbol, arguments)                                                     \
  name = reinterpret_cast<CUresult(*) arguments>(dlsym(library, symbol));                    \
  if (!name) {                                                                               \
    return std::string("the CUDA driver '") + path + "' has no " symbol                      \
           "; wanted a driver for CUDA 12.0 or newer (525)";                                 \
  }
    DRIVER_FUNCTIONS(RESOLVE)
#undef RESOLVE
    return {};
  }

  Failure initialize() {
    CUresult code = Init(0);
    if (code == CUDA_ERROR_NO_DEVICE) return {};
    if (code) return {"cuInit", code};
    code = DeviceGetCount(&devices);
    if (code) return {"cuDeviceGetCount", code};
    contexts = std::vector<std::atomic<CUcontext>>(devices);
    return {};
  }

  std::string describe(const Failure& failure) const {
    const char *name = nullptr, *text = nullptr;
    GetErrorName(failure.code, &name);
    GetErrorString(failure.code, &text);
    return std::string(failure.call) + " failed with " + (name ? name : "an unknown error") + " (" +
           std::to_string(failure.code) + (text ? std::string(": ") + text : "") + ")";
  }

  // Runs `body` with a device's primary context current, and leaves the caller's context as it was.
  template <class Body>
  Failure on_device(int device, Body body) {
    CUcontext wanted, current = nullptr;
    if (Failure failure = primary_context(device, &wanted)) return failure;
    if (CUresult code = CtxGetCurrent(&current)) return {"cuCtxGetCurrent", code};
    if (current == wanted) return body();
    if (CUresult code = CtxPushCurrent(wanted)) return {"cuCtxPushCurrent", code};
    Failure failure = body();
    CUresult code = CtxPopCurrent(&wanted);
    if (!failure && code) failure = {"cuCtxPopCurrent", code};
    return failure;
  }

 private:
  std::mutex mutex;
  std::vector<std::atomic<CUcontext>> contexts;  // by device, once retained

  Failure primary_context(int device, CUcontext* out) {
    if ((*out = contexts[device].load(std::memory_order_acquire))) return {};
    std::lock_guard<std::mutex> lock(mutex);
    if ((*out = contexts[device].load())) return {};
    CUdevice handle;
    if (CUresult code = DeviceGet(&handle, device)) return {"cuDeviceGet", code};
    if (CUresult code = DevicePrimaryCtxRetain(out, handle)) return {"cuDevicePrimaryCtxRetain", code};
    contexts[device].store(*out, std::memory_order_release);
    return {};
  }
};

struct Library {
  std::shared_ptr<Driver> driver;
  std::string name;
  CUlibrary handle = nullptr;

  // image: a cubin, or PTX text that ends with a NUL.
  Failure load(const char* image) {
    CUresult code = driver->LibraryLoadData(&handle, image, options, values, 4, nullptr, nullptr, 0);
    return code ? Failure{"cuLibraryLoadData", code} : Failure{};
  }

  std::string log() const {
    return std::string(*errors ? "\ncompiler errors:\n" : "") + errors + (*infos ? "\ncompiler log:\n" : "") + infos;
  }

  Library(std::shared_ptr<Driver> driver, std::string name) : driver(std::move(driver)), name(std::move(name)) {}
  Library(const Library&) = delete;

 private:
  // The driver may compile PTX as late as a kernel's first use, so the log lives as long as the library.
  char errors[8192] = "", infos[1024] = "";
  int options[4] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
                    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
  void* values[4] = {errors, reinterpret_cast<void*>(sizeof errors), infos, reinterpret_cast<void*>(sizeof infos)};
};

enum Kind { POINTER, U32, I32, U64, I64, F32, F64, TENSOR_MAP };
constexpr const char* KINDS[] = {"pointer", "u32", "i32", "u64", "i64", "f32", "f64", "tensor_map"};

struct MapValues {  // what a call says about a tensor map: address, elements, bytes
  uint64_t address, sizes[MAX_RANK], strides[MAX_RANK];
};

struct Param {
  std::string name;
  Kind kind = POINTER;
  size_t slot = 0;  // its place among the tensor maps, or among the others
  // A tensor map's, in the driver's numbers:
  int dtype = 0, element_bytes = 1, rank = 0, swizzle = 0, l2_promotion = 0, oob_fill = 0;
  uint32_t box[MAX_RANK] = {};
  // Of im2col, whose box is channels and pixels: its spatial dimensions, corners, and steps of all dimensions.
  int spatial = 0, lower[MAX_RANK] = {}, upper[MAX_RANK] = {};
  uint32_t steps[MAX_RANK] = {1, 1, 1, 1, 1};

  int values() const { return kind == TENSOR_MAP ? 2 * rank : 1; }

  // The rules of tensor maps that a call breaks, one a line.
  std::string broken_rules(const MapValues& v) const {
    std::string text;
    auto rule = [&](bool broken, const std::string& what) { text += broken ? "\n  " + what : ""; };
    rule(v.address % 16, "the address must be a multiple of 16 bytes");
    for (int i = 0; i < rank; ++i) {
      std::string at = "[" + std::to_string(i) + "] must be ";
      rule(v.sizes[i] < 1 || v.sizes[i] > uint64_t{1} << 32, "size" + at + "1 to 2^32 elements");
      rule((i == 0 || !spatial) && (box[i] < 1 || box[i] > 256), "box" + at + "1 to 256 elements");
      if (i == 0) continue;
      rule(v.strides[i - 1] % 16, "stride" + at + "a multiple of 16 bytes");
      rule(v.strides[i - 1] >= uint64_t{1} << 40, "stride" + at + "below 2^40 bytes");
    }
    rule(spatial && (box[1] < 1 || box[1] > 1024), "im2col takes 1 to 1024 pixels");
    unsigned inner = box[0] * element_bytes, span = 16u << swizzle;
    rule(inner % 16, "the inner box must be a multiple of 16 bytes");
    rule(swizzle && inner > span, "the inner box must fit the swizzle span of " + std::to_string(span) + " bytes");
    return text;
  }
};

struct Frame {  // the parameters of one launch, on the caller's stack
  CUtensorMap maps[MAX_TENSOR_MAPS];
  MapValues map_values[MAX_TENSOR_MAPS];
  uint64_t scalars[MAX_PARAMS];
  void* pointers[MAX_PARAMS];

  void* at(const Param& param) {
    return param.kind == TENSOR_MAP ? static_cast<void*>(&maps[param.slot]) : &scalars[param.slot];
  }
};

struct Kernel {
  std::shared_ptr<Library> library;
  Driver& driver;
  std::string name;
  CUkernel handle = nullptr;
  std::vector<Param> params;
  int values = 0;  // that a launch takes for them
  unsigned block[3] = {1, 1, 1}, cluster[3] = {1, 1, 1}, shared_memory = 0;
  bool pdl = false;

  Kernel(std::shared_ptr<Library> owner, std::string name)
      : library(std::move(owner)), driver(*library->driver), name(std::move(name)), functions(driver.devices) {}

  Failure find() {
    CUresult code = driver.LibraryGetKernel(&handle, library->handle, name.c_str());
    return code ? Failure{"cuLibraryGetKernel", code} : Failure{};
  }

  // Loads the kernel on the current device and raises its limits there, once.
  Failure prepare(int device, CUfunction* out) {
    if ((*out = functions[device].load(std::memory_order_acquire))) return {};
    std::lock_guard<std::mutex> lock(mutex);
    if ((*out = functions[device].load())) return {};
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;  // loading allocates, which the stricter modes forbid during a capture
    CUresult code = driver.ThreadExchangeStreamCaptureMode(&mode);
    if (code) return {"cuThreadExchangeStreamCaptureMode", code};
    Failure failure = load(device, out);
    code = driver.ThreadExchangeStreamCaptureMode(&mode);
    if (!failure && code) failure = {"cuThreadExchangeStreamCaptureMode", code};
    if (!failure) functions[device].store(*out, std::memory_order_release);
    return failure;
  }

  // Encodes the tensor maps and enqueues the grid on the current device.
  Failure launch(int device, CUstream stream, const unsigned grid[3], Frame& frame) {
    CUfunction function;
    if (Failure failure = prepare(device, &function)) return failure;
    for (size_t i = 0; i < params.size(); ++i) frame.pointers[i] = frame.at(params[i]);
    if (Failure failure = encode(frame)) return failure;
    CUlaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (cluster_size() > 1) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      std::memcpy(attributes[count++].value.words, cluster, sizeof cluster);
    }
    if (pdl) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attributes[count++].value.words[0] = 1;
    }
    CUlaunchConfig config = {grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_memory, stream, attributes,
                             count};
    CUresult code = driver.LaunchKernelEx(&config, function, frame.pointers, nullptr);
    return code ? Failure{"cuLaunchKernelEx", code} : Failure{};
  }

  Failure attributes(int device, const int* which, int count, int* out) {
    CUdevice target;
    if (CUresult code = driver.DeviceGet(&target, device)) return {"cuDeviceGet", code};
    for (int i = 0; i < count; ++i) {
      if (CUresult code = driver.KernelGetAttribute(&out[i], which[i], handle, target)) {
        return {"cuKernelGetAttribute", code};
      }
    }
    return {};
  }

 private:
  std::mutex mutex;
  std::vector<std::atomic<CUfunction>> functions;  // by device, once prepared there

  unsigned cluster_size() const { return cluster[0] * cluster[1] * cluster[2]; }

  Failure load(int device, CUfunction* out) {
    CUdevice target;
    if (CUresult code = driver.DeviceGet(&target, device)) return {"cuDeviceGet", code};
    if (shared_memory > DEFAULT_SHARED) {
      CUresult code = driver.KernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                static_cast<int>(shared_memory), handle, target);
      if (code) return {"cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)", code};
    }
    if (cluster_size() > PORTABLE_CLUSTER) {
      CUresult code = driver.KernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, handle, target);
      if (code) return {"cuKernelSetAttribute(NON_PORTABLE_CLUSTER_SIZE_ALLOWED)", code};
    }
    CUresult code = driver.KernelGetFunction(out, handle);
    return code ? Failure{"cuKernelGetFunction", code} : Failure{};
  }

  Failure encode(Frame& frame) {
    for (size_t i = 0; i < params.size(); ++i) {
      const Param& p = params[i];
      if (p.kind != TENSOR_MAP) continue;
      const MapValues& v = frame.map_values[p.slot];
      void* address = reinterpret_cast<void*>(v.address);
      CUresult code = p.spatial ? driver.TensorMapEncodeIm2col(&frame.maps[p.slot], p.dtype, p.rank, address, v.sizes,
                                                               v.strides, p.lower, p.upper, p.box[0], p.box[1], p.steps,
                                                               /*interleave=*/0, p.swizzle, p.l2_promotion, p.oob_fill)
                                : driver.TensorMapEncodeTiled(&frame.maps[p.slot], p.dtype, p.rank, address, v.sizes,
                                                              v.strides, p.box, p.steps, /*interleave=*/0, p.swizzle,
                                                              p.l2_promotion, p.oob_fill);
      if (code) return {p.spatial ? "cuTensorMapEncodeIm2col" : "cuTensorMapEncodeTiled", code, i};
    }
    return {};
  }
};
