// A CUDA driver of two devices that records its calls, for tests of the launcher on machines without a GPU.
//
// The image of a library is text: the sizes in bytes of the parameters of its kernels, so that a launch can be recorded
// byte for byte. stub_fail(call, code) makes every later call of a function fail.
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "driver.h"

namespace {

std::mutex mutex;
std::string log_text;
std::map<std::string, int> failures;
int maps_encoded = 0;
thread_local std::vector<CUcontext> stack;
thread_local int capture_mode = 0;

struct FakeLibrary {
  std::vector<size_t> sizes;
};

struct FakeKernel {
  std::string name;
  FakeLibrary* library;
};

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(uintptr_t(0xC0 + device)); }

int current_device() { return stack.empty() ? -1 : int(reinterpret_cast<uintptr_t>(stack.back()) - 0xC0); }

template <class T>
std::string list(const T* values, size_t count) {
  std::ostringstream text;
  for (size_t i = 0; i < count; ++i) text << (i ? "," : "") << values[i];
  return text.str();
}

// Notes a call; returns the error that it was told to give.
int note(const std::string& call, const std::string& arguments = "") {
  std::lock_guard<std::mutex> lock(mutex);
  log_text += call + (arguments.empty() ? "" : " " + arguments) + "\n";
  auto found = failures.find(call);
  return found == failures.end() ? 0 : found->second;
}

std::string on_device() { return "device=" + std::to_string(current_device()); }

}  // namespace

extern "C" {

const char* stub_log() { return log_text.c_str(); }

void stub_reset() {
  std::lock_guard<std::mutex> lock(mutex);
  log_text.clear();
  failures.clear();
  stack.clear();
  maps_encoded = 0;
}

void stub_fail(const char* call, int code) { failures[call] = code; }
void stub_set_context(int device) { stack.assign(device < 0 ? 0 : 1, context_of(device)); }
int stub_device() { return current_device(); }
int stub_capture_mode() { return capture_mode; }

CUresult cuInit(unsigned) { return note("cuInit"); }
CUresult cuDriverGetVersion(int* out) { return *out = 12080, note("cuDriverGetVersion"); }

CUresult cuGetErrorName(CUresult code, const char** out) {
  *out = code == 1 ? "CUDA_ERROR_INVALID_VALUE" : code == 218 ? "CUDA_ERROR_INVALID_PTX" : nullptr;
  return *out ? 0 : 1;
}

CUresult cuGetErrorString(CUresult code, const char** out) {
  *out = code == 1 ? "invalid argument" : code == 218 ? "a PTX JIT compilation failed" : nullptr;
  return *out ? 0 : 1;
}

CUresult cuDeviceGetCount(int* out) { return *out = 2, note("cuDeviceGetCount"); }
CUresult cuDeviceGet(CUdevice* out, int ordinal) { return *out = ordinal, ordinal < 2 ? note("cuDeviceGet") : 101; }
CUresult cuDeviceGetAttribute(int* out, int which, CUdevice) { return *out = which == 75 ? 9 : 0, 0; }

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  *out = context_of(device);
  return note("cuDevicePrimaryCtxRetain", "device=" + std::to_string(device));
}

CUresult cuCtxGetCurrent(CUcontext* out) { return *out = stack.empty() ? nullptr : stack.back(), 0; }

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  int code = note("cuCtxPushCurrent");
  if (!code) stack.push_back(context);
  return code;
}

CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  *out = stack.back();
  stack.pop_back();
  return note("cuCtxPopCurrent");
}

CUresult cuLibraryLoadData(CUlibrary* out, const void* code, int* options, void** values, unsigned count, int*, void**,
                           unsigned) {
  int error = note("cuLibraryLoadData");
  for (unsigned i = 0; error && i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) std::strcpy(static_cast<char*>(values[i]), "line 3: no such opcode");
    if (options[i] == CU_JIT_INFO_LOG_BUFFER) std::strcpy(static_cast<char*>(values[i]), "compiling");
  }
  if (error) return error;
  auto* library = new FakeLibrary;
  std::istringstream text(static_cast<const char*>(code));
  for (size_t size; text >> size;) library->sizes.push_back(size);
  *out = reinterpret_cast<CUlibrary>(library);
  return 0;
}

CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary library, const char* name) {
  *out = reinterpret_cast<CUkernel>(new FakeKernel{name, reinterpret_cast<FakeLibrary*>(library)});
  return note("cuLibraryGetKernel", name);
}

CUresult cuKernelGetFunction(CUfunction* out, CUkernel kernel) {
  *out = reinterpret_cast<CUfunction>(kernel);
  return note("cuKernelGetFunction", on_device() + " capture=" + std::to_string(capture_mode));
}

CUresult cuKernelGetAttribute(int* out, int which, CUkernel, CUdevice) {
  return *out = 100 + which, note("cuKernelGetAttribute");
}

CUresult cuKernelSetAttribute(int which, int value, CUkernel, CUdevice device) {
  return note("cuKernelSetAttribute",
              std::to_string(which) + "=" + std::to_string(value) + " device=" + std::to_string(device));
}

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return 0;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, int dtype, uint32_t rank, void* address, const uint64_t* sizes,
                                const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                                int interleave, int swizzle, int promotion, int fill) {
  if (reinterpret_cast<uintptr_t>(map) % alignof(CUtensorMap)) return 716;
  std::ostringstream text;
  text << on_device() << " dtype=" << dtype << " address=" << reinterpret_cast<uintptr_t>(address)
       << " sizes=" << list(sizes, rank) << " strides=" << list(strides, rank - 1) << " box=" << list(box, rank)
       << " steps=" << list(element_strides, rank) << " interleave=" << interleave << " swizzle=" << swizzle
       << " promotion=" << promotion << " fill=" << fill;
  std::memset(map, ++maps_encoded, sizeof *map);
  return note("cuTensorMapEncodeTiled", text.str());
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, int dtype, uint32_t rank, void* address, const uint64_t* sizes,
                                 const uint64_t* strides, const int* lower, const int* upper, uint32_t channels,
                                 uint32_t pixels, const uint32_t* element_strides, int interleave, int swizzle,
                                 int promotion, int fill) {
  if (reinterpret_cast<uintptr_t>(map) % alignof(CUtensorMap)) return 716;
  std::ostringstream text;
  text << on_device() << " dtype=" << dtype << " address=" << reinterpret_cast<uintptr_t>(address)
       << " sizes=" << list(sizes, rank) << " strides=" << list(strides, rank - 1) << " lower=" << list(lower, rank - 2)
       << " upper=" << list(upper, rank - 2) << " channels=" << channels << " pixels=" << pixels
       << " steps=" << list(element_strides, rank) << " interleave=" << interleave << " swizzle=" << swizzle
       << " promotion=" << promotion << " fill=" << fill;
  std::memset(map, ++maps_encoded, sizeof *map);
  return note("cuTensorMapEncodeIm2col", text.str());
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void**) {
  auto* kernel = reinterpret_cast<FakeKernel*>(function);
  std::ostringstream text;
  text << kernel->name << " " << on_device() << " grid=" << list(&config->gridDimX, 3)
       << " block=" << list(&config->blockDimX, 3) << " shared=" << config->sharedMemBytes
       << " stream=" << reinterpret_cast<uintptr_t>(config->hStream) << " attributes=";
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    text << (i ? ";" : "") << attribute.id << ":" << list(attribute.value.words, attribute.id == 4 ? 3 : 1);
  }
  text << " params=";
  const std::vector<size_t>& sizes = kernel->library->sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    text << (i ? "," : "");
    for (size_t byte = 0; byte < sizes[i]; ++byte) {
      static const char* digits = "0123456789abcdef";
      unsigned char value = static_cast<unsigned char*>(params[i])[byte];
      text << digits[value >> 4] << digits[value & 15];
    }
  }
  return note("cuLaunchKernelEx", text.str());
}

}  // extern "C"
