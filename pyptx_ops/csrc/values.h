// The values of a launch, from Python objects to what the driver takes, and the errors of launches.
#pragma once

#include <cfloat>
#include <cmath>

#include "objects.h"
#include "runtime.h"

constexpr int LAUNCH_VALUES = 5;  // device, stream, grid x, y, z

inline bool as_unsigned(PyObject* value, uint64_t maximum, uint64_t* out) {
  if (!PyLong_Check(value)) return false;
  *out = PyLong_AsUnsignedLongLong(value);
  if (*out == UINT64_MAX && PyErr_Occurred()) return PyErr_Clear(), false;
  return *out <= maximum;
}

inline bool as_signed(PyObject* value, int64_t minimum, int64_t maximum, uint64_t* out) {
  if (!PyLong_Check(value)) return false;
  int overflow = 0;
  int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
  std::memcpy(out, &number, sizeof number);
  return !overflow && minimum <= number && number <= maximum;
}

inline bool as_float(PyObject* value, double maximum, double* out) {
  *out = PyFloat_AsDouble(value);
  if (*out == -1.0 && PyErr_Occurred()) return PyErr_Clear(), false;
  return !(std::isfinite(*out) && std::fabs(*out) > maximum);
}

inline bool bad_value(const Kernel& kernel, const std::string& what, const char* kind, PyObject* got) {
  bool number = PyLong_Check(got) || PyFloat_Check(got);
  bool wrong_type = PyFloat_Check(got) ? kind[0] != 'f' : !number;
  PyErr_Format(wrong_type ? PyExc_TypeError : PyExc_OverflowError, "kernel '%s': %s wanted a value of kind %s, got %R",
               kernel.name.c_str(), what.c_str(), kind, got);
  return false;
}

inline bool pack_scalar(const Kernel& kernel, const Param& param, PyObject* value, uint64_t* out) {
  bool ok = false;
  double number = 0;
  *out = 0;
  switch (param.kind) {
    case POINTER: case U64: ok = as_unsigned(value, UINT64_MAX, out); break;
    case U32: ok = as_unsigned(value, UINT32_MAX, out); break;
    case I32: ok = as_signed(value, INT32_MIN, INT32_MAX, out); break;
    case I64: ok = as_signed(value, INT64_MIN, INT64_MAX, out); break;
    case F32: {
      ok = as_float(value, FLT_MAX, &number);
      float narrow = static_cast<float>(number);
      std::memcpy(out, &narrow, sizeof narrow);
      break;
    }
    case F64: {
      ok = as_float(value, DBL_MAX, &number);
      std::memcpy(out, &number, sizeof number);
      break;
    }
    case TENSOR_MAP: break;
  }
  return ok || bad_value(kernel, "parameter '" + param.name + "'", KINDS[param.kind], value);
}

inline bool pack_map(const Kernel& kernel, const Param& param, PyObject* const* values, MapValues* out) {
  auto part = [&](const char* what, int index, PyObject* value, uint64_t* slot) {
    if (as_unsigned(value, UINT64_MAX, slot)) return true;
    std::string text = "tensor map '" + param.name + "' " + what;
    return bad_value(kernel, index < 0 ? text : text + " " + std::to_string(index), "u64", value);
  };
  if (!part("address", -1, values[0], &out->address)) return false;
  for (int i = 0; i < param.rank; ++i) {
    if (!part("size", i, values[1 + i], &out->sizes[i])) return false;
  }
  for (int i = 1; i < param.rank; ++i) {
    if (!part("stride", i, values[param.rank + i], &out->strides[i - 1])) return false;
  }
  return true;
}

// Reads the values of every parameter.
inline bool pack(const Kernel& kernel, PyObject* const* values, Frame& frame) {
  for (size_t i = 0; i < kernel.params.size(); ++i) {
    const Param& param = kernel.params[i];
    bool map = param.kind == TENSOR_MAP;
    if (!(map ? pack_map(kernel, param, values, &frame.map_values[param.slot])
              : pack_scalar(kernel, param, *values, &frame.scalars[param.slot]))) {
      return false;
    }
    values += param.values();
  }
  return true;
}

inline PyObject* raise_failure(const Kernel& kernel, const Failure& failure, int device, const unsigned* grid,
                               const Frame* frame) {
  std::string text = kernel.driver.describe(failure) + " for kernel " + quoted(kernel.name) +
                     " on device " + std::to_string(device);
  if (frame && failure.param < kernel.params.size()) {
    const Param& p = kernel.params[failure.param];
    const MapValues& v = frame->map_values[p.slot];
    std::string rules = p.broken_rules(v);
    text += ", tensor map " + quoted(p.name) + ": address " + std::to_string(v.address) + ", sizes " +
            join(v.sizes, p.rank) + ", strides " + join(v.strides, p.rank - 1) + ", box " + join(p.box, p.spatial ? 2 : p.rank) + ", " +
            std::to_string(p.element_bytes) + "-byte elements, data type " + std::to_string(p.dtype) + ", swizzle " +
            std::to_string(p.swizzle) + ", L2 promotion " + std::to_string(p.l2_promotion) + "; rules broken:" +
            (rules.empty() ? " none known here" : rules);
  } else if (grid) {
    text += ": grid " + join(grid, 3) + ", block " + join(kernel.block, 3) + ", cluster " + join(kernel.cluster, 3) +
            ", dynamic shared memory " + std::to_string(kernel.shared_memory) + " bytes" +
            (kernel.pdl ? ", programmatic dependent launch" : "");
  }
  return raise(LaunchError, text + kernel.library->log());
}

inline PyObject* raise_count(const Kernel& kernel, Py_ssize_t got) {
  std::string text = "device, stream, grid_x, grid_y, grid_z";
  for (const Param& p : kernel.params) {
    text += ", " + p.name + ": " + KINDS[p.kind];
    if (p.kind == TENSOR_MAP) {
      text += " (address, " + std::to_string(p.rank) + " sizes, " + std::to_string(p.rank - 1) + " strides)";
    }
  }
  return raise(PyExc_TypeError, "kernel " + quoted(kernel.name) + " wanted " +
                                    std::to_string(LAUNCH_VALUES + kernel.values) + " values (" + text + "), got " +
                                    std::to_string(got));
}

inline bool as_grid(const Kernel& kernel, PyObject* const* values, unsigned grid[3]) {
  for (int i = 0; i < 3; ++i) {
    uint64_t size;
    if (!as_unsigned(values[i], UINT32_MAX, &size)) return bad_value(kernel, "grid", "u32", values[i]);
    grid[i] = static_cast<unsigned>(size);
  }
  return true;
}

inline bool as_device(const Kernel& kernel, PyObject* value, int* out) {
  uint64_t number;
  if (!as_unsigned(value, INT32_MAX, &number)) return bad_value(kernel, "device", "u32", value);
  *out = static_cast<int>(number);
  if (*out < kernel.driver.devices) return true;
  raise(LaunchError, "kernel " + quoted(kernel.name) + ": device " + std::to_string(number) +
                         " does not exist; the driver sees " + std::to_string(kernel.driver.devices));
  return false;
}

// Enqueues a grid, of which a zero dimension makes none, with the GIL released. False with an exception set.
inline bool launch(Kernel& kernel, int device, CUstream stream, const unsigned grid[3], Frame& frame) {
  if (!grid[0] || !grid[1] || !grid[2]) return true;
  Failure failure;
  {
    ReleaseGil released;
    failure = kernel.driver.on_device(device, [&] { return kernel.launch(device, stream, grid, frame); });
  }
  return !failure || raise_failure(kernel, failure, device, grid, &frame);
}
