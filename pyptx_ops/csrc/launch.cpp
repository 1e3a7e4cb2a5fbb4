// pyptx_ops._launch: loads kernels and launches them through the CUDA driver API.
//
//   Driver(path) -> Driver.load(image, name) -> Library.kernel(entry, params, ...) -> Kernel.launch(...)
//   BoundCalls(exchange, ...) -> BoundCalls.add(args, kernel, ...); BoundCalls.run(*args)
//
// Torch-free, abi3, built without a CUDA toolkit; it knows no kernel by name. The GIL is released around driver calls,
// and no mutex is held while waiting for it.
#include "calls.h"

namespace {

// ---------------------------------------------------------------------------------------------------------- driver

PyObject* driver_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"path", nullptr};
  const char* path;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s:Driver", const_cast<char**>(names), &path)) return nullptr;
  auto driver = std::make_shared<Driver>();
  std::string missing;
  Failure failure;
  {
    ReleaseGil released;
    missing = driver->open(path);
    if (missing.empty()) failure = driver->initialize();
  }
  if (!missing.empty()) return raise(DriverNotFound, missing);
  if (failure) return raise(LaunchError, driver->describe(failure));
  return wrap(type, std::move(driver));
}

PyObject* driver_version(PyObject* self, PyObject*) {
  Driver& driver = *state_of<Driver>(self);
  int version = 0;
  CUresult code = driver.DriverGetVersion(&version);
  if (code) return raise(LaunchError, driver.describe({"cuDriverGetVersion", code}));
  return Py_BuildValue("(ii)", version / 1000, version % 1000 / 10);
}

PyObject* driver_device_count(PyObject* self, PyObject*) { return PyLong_FromLong(state_of<Driver>(self)->devices); }

PyObject* driver_compute_capability(PyObject* self, PyObject* argument) {
  Driver& driver = *state_of<Driver>(self);
  long device = PyLong_AsLong(argument);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  CUdevice handle;
  int major = 0, minor = 0;
  CUresult code = driver.DeviceGet(&handle, static_cast<int>(device));
  if (!code) code = driver.DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle);
  if (!code) code = driver.DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle);
  if (!code) return Py_BuildValue("(ii)", major, minor);
  return raise(LaunchError, driver.describe({"cuDeviceGetAttribute", code}) + " for device " + std::to_string(device) +
                                " of " + std::to_string(driver.devices));
}

PyObject* driver_load(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"image", "name", nullptr};
  PyObject* image;
  const char* name;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ss:load", const_cast<char**>(names), &image, &name)) return nullptr;
  auto library = std::make_shared<Library>(state_of<Driver>(self), name);
  const char* bytes = PyBytes_AsString(image);  // ends with a NUL, as the driver wants of PTX
  Failure failure;
  {
    ReleaseGil released;
    failure = library->load(bytes);
  }
  if (!failure) return wrap(library_type, std::move(library));
  return raise(LaunchError, library->driver->describe(failure) + " for kernel " + quoted(name) + library->log());
}

// ---------------------------------------------------------------------------------------------------------- kernel

PyObject* kernel_launch(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Kernel& kernel = *state_of<Kernel>(self);
  if (count != LAUNCH_VALUES + kernel.values) return raise_count(kernel, count);
  int device;
  uint64_t stream;
  unsigned grid[3];
  if (!as_device(kernel, args[0], &device)) return nullptr;
  if (!as_unsigned(args[1], UINT64_MAX, &stream)) return bad_value(kernel, "stream", "pointer", args[1]), nullptr;
  if (!as_grid(kernel, args + 2, grid)) return nullptr;
  Frame frame;
  if (!pack(kernel, args + LAUNCH_VALUES, frame)) return nullptr;
  if (!launch(kernel, device, reinterpret_cast<CUstream>(stream), grid, frame)) return nullptr;
  Py_RETURN_NONE;
}

bool prepare(Kernel& kernel, PyObject* argument, int* device) {
  if (!as_device(kernel, argument, device)) return false;
  Failure failure;
  {
    ReleaseGil released;
    CUfunction function;
    failure = kernel.driver.on_device(*device, [&] { return kernel.prepare(*device, &function); });
  }
  return !failure || raise_failure(kernel, failure, *device, nullptr, nullptr);
}

PyObject* kernel_prepare(PyObject* self, PyObject* argument) {
  int device;
  if (!prepare(*state_of<Kernel>(self), argument, &device)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* kernel_attributes(PyObject* self, PyObject* argument) {
  static constexpr int attributes[] = {CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                                       CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                       CU_FUNC_ATTRIBUTE_BINARY_VERSION};
  Kernel& kernel = *state_of<Kernel>(self);
  int device, values[5];
  if (!prepare(kernel, argument, &device)) return nullptr;
  Failure failure;
  {
    ReleaseGil released;
    failure = kernel.driver.on_device(device, [&] { return kernel.attributes(device, attributes, 5, values); });
  }
  if (failure) return raise_failure(kernel, failure, device, nullptr, nullptr);
  return Py_BuildValue("{sisisisisi}", "registers", values[0], "local_bytes", values[1], "shared_bytes", values[2],
                       "max_threads", values[3], "binary_version", values[4]);
}

PyObject* kernel_name(PyObject* self, void*) { return PyUnicode_FromString(state_of<Kernel>(self)->name.c_str()); }

// The window of an im2col map: the lower corner, the upper one and the steps of its spatial dimensions.
bool parse_window(const std::string& where, PyObject* window, Param* param) {
  int count = static_cast<int>(PyTuple_Size(window)), spatial = count / 3;
  if (count % 3 || spatial < 1 || spatial > MAX_RANK - 2 || param->rank != 2) {
    return raise(PyExc_ValueError, where + ": wanted a window of 1 to 3 dimensions and a box of channels and pixels");
  }
  for (int i = 0; i < count; ++i) {
    long value = PyLong_AsLong(PyTuple_GetItem(window, i));
    if (value == -1 && PyErr_Occurred()) return false;
    int *corners[] = {param->lower, param->upper}, d = i % spatial;
    if (i < 2 * spatial)
      corners[i / spatial][d] = static_cast<int>(value);
    else
      param->steps[d + 1] = static_cast<uint32_t>(value);
  }
  param->spatial = spatial;
  param->rank = spatial + 2;
  return true;
}

// A parameter is (name, kind); a tensor map (name, kind, dtype, element bytes, box, swizzle, L2 promotion, fill), and a
// window for im2col.
bool parse_param(const Kernel& kernel, PyObject* spec, Param* param) {
  const char *name, *kind;
  PyObject *box = nullptr, *window = nullptr;
  if (!PyArg_ParseTuple(spec, "ss|iiO!iiiO!:parameter", &name, &kind, &param->dtype, &param->element_bytes, &PyTuple_Type,
                        &box, &param->swizzle, &param->l2_promotion, &param->oob_fill, &PyTuple_Type, &window)) {
    return false;
  }
  param->name = name;
  int index = 0;
  while (index <= TENSOR_MAP && std::strcmp(KINDS[index], kind)) ++index;
  param->kind = static_cast<Kind>(index);
  std::string where = "kernel " + quoted(kernel.name) + " parameter " + quoted(param->name);
  if (index > TENSOR_MAP) return raise(PyExc_ValueError, where + ": unknown kind " + quoted(kind));
  if ((param->kind == TENSOR_MAP) != (box != nullptr)) {
    return raise(PyExc_ValueError, where + ": a tensor map, and nothing else, has a box");
  }
  if (!box) return true;
  param->rank = static_cast<int>(PyTuple_Size(box));
  if (param->rank < 1 || param->rank > MAX_RANK) {
    return raise(PyExc_ValueError, where + ": wanted a box of 1 to 5 dimensions, got " + std::to_string(param->rank));
  }
  for (int i = 0; i < param->rank; ++i) {
    uint64_t size;
    PyObject* item = PyTuple_GetItem(box, i);
    if (!as_unsigned(item, UINT32_MAX, &size)) return bad_value(kernel, "box of '" + param->name + "'", "u32", item);
    param->box[i] = static_cast<uint32_t>(size);
  }
  return !window || parse_window(where, window, param);
}

bool parse_params(Kernel& kernel, PyObject* specs) {
  size_t maps = 0, scalars = 0;
  for (Py_ssize_t i = 0; i < PyTuple_Size(specs); ++i) {
    Param param;
    if (!parse_param(kernel, PyTuple_GetItem(specs, i), &param)) return false;
    param.slot = param.kind == TENSOR_MAP ? maps++ : scalars++;
    kernel.values += param.values();
    kernel.params.push_back(std::move(param));
  }
  if (maps <= MAX_TENSOR_MAPS && kernel.params.size() <= MAX_PARAMS) return true;
  return raise(PyExc_ValueError, "kernel " + quoted(kernel.name) + ": wanted at most " + std::to_string(MAX_PARAMS) +
                                     " parameters with " + std::to_string(MAX_TENSOR_MAPS) + " tensor maps, got " +
                                     std::to_string(kernel.params.size()) + " with " + std::to_string(maps));
}

PyObject* library_kernel(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"entry", "params", "block", "cluster", "shared_memory", "pdl", nullptr};
  const char* entry;
  PyObject* params;
  unsigned block[3], cluster[3] = {1, 1, 1}, shared_memory = 0;
  int pdl = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!(III)|(III)Ip:kernel", const_cast<char**>(names), &entry,
                                   &PyTuple_Type, &params, &block[0], &block[1], &block[2], &cluster[0], &cluster[1],
                                   &cluster[2], &shared_memory, &pdl)) {
    return nullptr;
  }
  auto kernel = std::make_shared<Kernel>(state_of<Library>(self), entry);
  std::memcpy(kernel->block, block, sizeof block);
  std::memcpy(kernel->cluster, cluster, sizeof cluster);
  kernel->shared_memory = shared_memory;
  kernel->pdl = pdl;
  if (!parse_params(*kernel, params)) return nullptr;
  Failure failure;
  {
    ReleaseGil released;
    failure = kernel->find();
  }
  if (!failure) return wrap(kernel_type, std::move(kernel));
  return raise(LaunchError, kernel->driver.describe(failure) + " for kernel " + quoted(entry) + " in the image of " +
                                quoted(kernel->library->name) + kernel->library->log());
}

// ---------------------------------------------------------------------------------------------------------- module

PyMethodDef driver_methods[] = {
    {"load", method(driver_load), METH_VARARGS | METH_KEYWORDS,
     "load(image: bytes, name: str) -> Library; the image is a cubin or PTX"},
    {"version", driver_version, METH_NOARGS, "version() -> (major, minor) of CUDA that the driver supports"},
    {"device_count", driver_device_count, METH_NOARGS, "device_count() -> int"},
    {"compute_capability", driver_compute_capability, METH_O, "compute_capability(device) -> (major, minor)"},
    {}};
PyMethodDef library_methods[] = {
    {"kernel", method(library_kernel), METH_VARARGS | METH_KEYWORDS,
     "kernel(entry, params, block, cluster=(1, 1, 1), shared_memory=0, pdl=False) -> Kernel"},
    {}};
PyMethodDef kernel_methods[] = {
    {"launch", method(kernel_launch), METH_FASTCALL, "launch(device, stream, grid_x, grid_y, grid_z, *args)"},
    {"prepare", kernel_prepare, METH_O, "prepare(device): load the kernel there ahead of its first launch"},
    {"attributes", kernel_attributes, METH_O, "attributes(device) -> dict of what the driver knows of the kernel"},
    {}};
PyGetSetDef kernel_getset[] = {{"name", kernel_name, nullptr, "entry name", nullptr}, {}};

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "pyptx_ops._launch", "Kernel launches through the CUDA driver API.", -1, nullptr, nullptr,
    nullptr, nullptr, nullptr};

bool add_object(PyObject* module, const char* name, PyObject* object) {
  return object && PyModule_AddObjectRef(module, name, object) == 0;
}

bool fill(PyObject* module) {
  LaunchError = PyErr_NewException("pyptx_ops._launch.LaunchError", PyExc_RuntimeError, nullptr);
  if (!add_object(module, "LaunchError", LaunchError)) return false;
  DriverNotFound = PyErr_NewException("pyptx_ops._launch.DriverNotFound", LaunchError, nullptr);
  if (!add_object(module, "DriverNotFound", DriverNotFound)) return false;
  PyTypeObject* driver_type = make_type<Driver>(
      "pyptx_ops._launch.Driver", {{Py_tp_methods, driver_methods}, {Py_tp_new, reinterpret_cast<void*>(driver_new)}});
  library_type = make_type<Library>("pyptx_ops._launch.Library", {{Py_tp_methods, library_methods}});
  kernel_type = make_type<Kernel>("pyptx_ops._launch.Kernel",
                                  {{Py_tp_methods, kernel_methods}, {Py_tp_getset, kernel_getset}});
  PyTypeObject* calls_type = make_calls_type();
  return add_object(module, "Driver", reinterpret_cast<PyObject*>(driver_type)) &&
         add_object(module, "Library", reinterpret_cast<PyObject*>(library_type)) &&
         add_object(module, "Kernel", reinterpret_cast<PyObject*>(kernel_type)) &&
         add_object(module, "BoundCalls", reinterpret_cast<PyObject*>(calls_type));
}

}  // namespace

PyMODINIT_FUNC PyInit__launch() {
  PyObject* module = PyModule_Create(&module_def);
  if (!module || fill(module)) return module;
  Py_DECREF(module);
  return nullptr;
}
