// BoundCalls: the calls of one op whose kind has been seen before, from Python arguments to a launch without Python.
//
// A call's key is all that its launch may depend on but addresses: of each tensor dtype, device, shape, strides, the
// address within 16 bytes and which earlier operand has the same address; of numbers their bits; of other constants
// their identity. A plan bound to a key has the values of the launch, in which a call only fills in addresses. Whatever
// is not a plain tensor or constant has no key, and its call is left to the caller, untouched.
//
// The table is touched with the GIL held only; a call keeps its plan alive by itself.
#pragma once

#include <unordered_map>

#include "dlpack.h"
#include "values.h"

constexpr size_t MAX_OPERANDS = 16;  // of an op, outputs included
constexpr size_t KEY_WORDS = 192;
constexpr uint64_t OPERAND_ALIGNMENT = 16;  // bytes, that kernels tell apart

class Reference {  // an owned one
 public:
  explicit Reference(PyObject* owned = nullptr) : object(owned) {}
  Reference(Reference&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Reference& operator=(Reference&& other) noexcept { return std::swap(object, other.object), *this; }
  ~Reference() { Py_XDECREF(object); }
  PyObject* get() const { return object; }
  PyObject* release() { return std::exchange(object, nullptr); }

 private:
  PyObject* object;
};

inline std::vector<PyObject*> items(PyObject* tuple) {  // borrowed
  std::vector<PyObject*> out;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) out.push_back(PyTuple_GetItem(tuple, i));
  return out;
}

inline std::vector<Reference> references(PyObject* tuple) {
  std::vector<Reference> out;
  for (PyObject* item : items(tuple)) out.emplace_back(Py_NewRef(item));
  return out;
}

struct Key {
  size_t count = 0;
  uint64_t words[KEY_WORDS];
  uint64_t addresses[MAX_OPERANDS];  // of the operands, not part of the key; 0 where an operand is no tensor
  uint64_t ends[MAX_OPERANDS];       // where their last elements end

  uint64_t hash() const {
    uint64_t sum = count;
    for (size_t i = 0; i < count; ++i) {
      sum = (sum ^ words[i]) * 0x9E3779B97F4A7C15;
      sum ^= sum >> 29;
    }
    return sum;
  }
};

struct Patch {  // an address that each call fills in: of the operand, + offset bytes
  bool map;
  size_t slot, operand;
  int64_t offset;
};

struct Allocation {  // what makes an output: a function and its arguments
  Reference function, arguments;
};

struct Plan {
  std::vector<uint64_t> key;
  std::shared_ptr<Kernel> kernel;
  int device = 0;
  unsigned grid[3] = {};
  std::vector<uint64_t> scalars;
  std::vector<MapValues> maps;
  std::vector<Patch> patches;
  std::vector<Allocation> outputs;
  std::vector<Reference> constants;  // keyed by identity, so that nothing else takes their place

  bool matches(const Key& other) const {
    return key.size() == other.count && !std::memcmp(key.data(), other.words, other.count * sizeof *other.words);
  }

  void fill(Frame& frame, const uint64_t* addresses) const {
    std::copy(scalars.begin(), scalars.end(), frame.scalars);
    std::copy(maps.begin(), maps.end(), frame.map_values);
    for (const Patch& patch : patches) {
      uint64_t& value = patch.map ? frame.map_values[patch.slot].address : frame.scalars[patch.slot];
      value = addresses[patch.operand] + patch.offset;
    }
  }
};

struct BoundCalls {
  const DLExchangeApi* api = nullptr;
  int device_type = DLPACK_CUDA;
  size_t limit = 0;
  bool apart = false;  // whether tensors that reach into each other's memory have no key
  Reference capsule;
  std::vector<Reference> names, defaults, tensor_types, constant_types, unusual;
  std::unordered_multimap<uint64_t, std::shared_ptr<const Plan>> plans;

  // All arguments in the order of the schema, borrowed; false where there are too many or too few.
  bool arrange(PyObject* const* given, size_t positional, PyObject* keywords, PyObject** out) const {
    size_t count = names.size(), required = count - defaults.size();
    if (positional > count) return false;
    std::copy(given, given + positional, out);
    std::fill(out + positional, out + count, nullptr);
    for (Py_ssize_t i = 0; keywords && i < PyTuple_Size(keywords); ++i) {
      size_t at = positional;
      while (at < count && PyUnicode_Compare(names[at].get(), PyTuple_GetItem(keywords, i))) ++at;
      if (at == count) return false;
      out[at] = given[positional + i];
    }
    for (size_t i = positional; i < count; ++i) {
      if (out[i]) continue;
      if (i < required) return false;
      out[i] = defaults[i - required].get();
    }
    return true;
  }

  // The key of a call; false where it has none.
  bool describe(PyObject* const* args, Key& key) const {
    for (size_t i = 0; i < names.size(); ++i) {
      key.addresses[i] = 0;
      PyObject* arg = args[i];
      if (key.count + 2 > KEY_WORDS) return false;
      if (is_tensor(arg)) {
        if (!describe_tensor(arg, i, key)) return false;
      } else if (arg == Py_None) {
        key.words[key.count++] = NONE;
      } else if (arg == Py_True || arg == Py_False) {
        key.words[key.count++] = BOOL | uint64_t(arg == Py_True) << 8;
      } else if (PyFloat_CheckExact(arg)) {
        double number = PyFloat_AsDouble(arg);
        key.words[key.count++] = FLOAT;
        std::memcpy(&key.words[key.count++], &number, sizeof number);
      } else if (PyLong_CheckExact(arg)) {
        key.words[key.count++] = INTEGER;
        if (!as_signed(arg, INT64_MIN, INT64_MAX, &key.words[key.count++])) return false;
      } else if (is_one_of(arg, constant_types)) {
        key.words[key.count++] = CONSTANT;
        key.words[key.count++] = reinterpret_cast<uintptr_t>(arg);
      } else {
        return false;
      }
    }
    return true;
  }

  std::shared_ptr<const Plan> find(const Key& key) const {
    auto range = plans.equal_range(key.hash());
    for (auto found = range.first; found != range.second; ++found) {
      if (found->second->matches(key)) return found->second;
    }
    return nullptr;
  }

  void add(const Key& key, std::shared_ptr<const Plan> plan) {
    auto range = plans.equal_range(key.hash());
    for (auto found = range.first; found != range.second; ++found) {
      if (found->second->matches(key)) return found->second.swap(plan);
    }
    if (plans.size() >= limit) clear();
    plans.emplace(key.hash(), std::move(plan));
  }

  void clear() {
    decltype(plans) dropped;  // what dies with a plan may run Python, which may come back here
    dropped.swap(plans);
  }

  bool is_tensor(PyObject* object) const { return is_one_of(object, tensor_types); }

  // Whether a tensor is more than its memory: a view that negates, say.
  bool is_unusual(PyObject* tensor) const {
    for (const Reference& test : unusual) {
      Reference answer(PyObject_CallFunctionObjArgs(test.get(), tensor, nullptr));
      if (!answer.get()) PyErr_Clear();  // the caller's own way gives the error, if it is one
      if (answer.get() != Py_False) return true;
    }
    return false;
  }

  // The memory of a tensor, where the framework shows it: others raise, or have none.
  bool show(PyObject* tensor, DLTensor* out) const {
    if (api->tensor_from_object(tensor, out)) return PyErr_Clear(), false;
    return out->data && out->device.type == device_type;
  }

 private:
  enum Tag : uint64_t { NONE, BOOL, INTEGER, FLOAT, CONSTANT, TENSOR };

  static bool is_one_of(PyObject* object, const std::vector<Reference>& types) {
    PyObject* own = reinterpret_cast<PyObject*>(Py_TYPE(object));
    for (const Reference& type : types) {
      if (type.get() == own) return true;
    }
    return false;
  }

  bool describe_tensor(PyObject* tensor, size_t index, Key& key) const {
    DLTensor t;
    if (!show(tensor, &t) || t.ndim > 255 || key.count + 2 + 2 * t.ndim > KEY_WORDS) return false;
    // No complex number has bf16 parts, so none of its views negates: the most frequent kind is spared the question.
    if (t.dtype.code != DLPACK_BFLOAT && is_unusual(tensor)) return false;
    uint64_t address = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
    size_t first = 0;
    key.addresses[index] = address;
    if (apart && !reaches_apart(t, index, key)) return false;
    while (key.addresses[first] != address) ++first;
    key.words[key.count++] = TENSOR | uint64_t(t.ndim) << 8 | uint64_t{t.dtype.code} << 16 |
                             uint64_t{t.dtype.bits} << 24 | uint64_t{t.dtype.lanes} << 32;
    key.words[key.count++] = address % OPERAND_ALIGNMENT | first << 8 | uint64_t(t.device.index) << 32;
    for (int i = 0; i < t.ndim; ++i) {
      key.words[key.count++] = static_cast<uint64_t>(t.shape[i]);
      key.words[key.count++] = static_cast<uint64_t>(t.strides[i]);
    }
    return true;
  }

  // Notes where a tensor ends; false where its memory and that of an earlier one may meet.
  static bool reaches_apart(const DLTensor& t, size_t index, Key& key) {
    uint64_t elements = 1;
    for (int i = 0; i < t.ndim; ++i) {
      if (t.shape[i] == 0) elements = 0;
      if (t.strides[i] < 0) return false;
      elements += elements ? static_cast<uint64_t>((t.shape[i] - 1) * t.strides[i]) : 0;
    }
    key.ends[index] = key.addresses[index] + (elements * t.dtype.bits * t.dtype.lanes + 7) / 8;
    for (size_t i = 0; i < index; ++i) {
      if (!key.addresses[i]) continue;
      if (key.addresses[index] < key.ends[i] && key.addresses[i] < key.ends[index]) return false;
    }
    return true;
  }
};

// ----------------------------------------------------------------------------------------------------- Python's side

inline PyObject* calls_run(PyObject* self, PyObject* const* given, Py_ssize_t positional, PyObject* keywords) {
  const BoundCalls& calls = *state_of<BoundCalls>(self);
  PyObject* args[MAX_OPERANDS];
  Key key;
  if (!calls.arrange(given, positional, keywords, args) || !calls.describe(args, key)) Py_RETURN_NOTIMPLEMENTED;
  std::shared_ptr<const Plan> plan = calls.find(key);
  if (!plan) Py_RETURN_NOTIMPLEMENTED;
  size_t count = plan->outputs.size();
  Reference outputs[MAX_OPERANDS];
  for (size_t i = 0; i < count; ++i) {
    const Allocation& made = plan->outputs[i];
    outputs[i] = Reference(PyObject_Call(made.function.get(), made.arguments.get(), nullptr));
    if (!outputs[i].get()) return nullptr;
    DLTensor output;
    if (!calls.show(outputs[i].get(), &output) || output.device.index != plan->device) Py_RETURN_NOTIMPLEMENTED;
    uint64_t address = reinterpret_cast<uintptr_t>(output.data) + output.byte_offset;
    if (address % OPERAND_ALIGNMENT) Py_RETURN_NOTIMPLEMENTED;
    key.addresses[calls.names.size() + i] = address;
  }
  void* stream = nullptr;
  if (calls.api->current_stream(calls.device_type, plan->device, &stream)) return nullptr;
  Frame frame;
  plan->fill(frame, key.addresses);
  if (!launch(*plan->kernel, plan->device, static_cast<CUstream>(stream), plan->grid, frame)) return nullptr;
  if (count == 1) return outputs[0].release();
  if (count == 0) Py_RETURN_NONE;
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(count));
  for (size_t i = 0; tuple && i < count; ++i) PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i), outputs[i].release());
  return tuple;
}

// Where the value at a position of a launch's values lies; false where it is no address.
inline bool locate(const Kernel& kernel, int position, Patch* patch) {
  int at = 0;
  for (const Param& param : kernel.params) {
    if (at == position && (param.kind == POINTER || param.kind == TENSOR_MAP)) {
      patch->map = param.kind == TENSOR_MAP;
      patch->slot = param.slot;
      return true;
    }
    at += param.values();
  }
  return false;
}

inline bool read_patches(const BoundCalls& calls, const Key& key, PyObject* addresses, Plan* plan) {
  std::string where = "kernel " + quoted(plan->kernel->name) + ": ";
  size_t arguments = calls.names.size();
  for (Py_ssize_t i = 0; i < PyTuple_Size(addresses); ++i) {
    int position, operand;
    long long offset;
    PyObject* item = PyTuple_GetItem(addresses, i);
    if (!PyTuple_Check(item)) return raise(PyExc_TypeError, where + "an address must be (position, operand, offset)");
    if (!PyArg_ParseTuple(item, "iiL:address", &position, &operand, &offset)) return false;
    Patch patch = {};
    if (!locate(*plan->kernel, position, &patch)) {
      return raise(PyExc_ValueError, where + "value " + std::to_string(position) + " is no address");
    }
    patch.operand = static_cast<size_t>(operand);
    patch.offset = offset;
    if (operand < 0 || patch.operand >= arguments + plan->outputs.size() ||
        (patch.operand < arguments && !key.addresses[operand])) {
      return raise(PyExc_ValueError, where + "operand " + std::to_string(operand) + " is no tensor of the call");
    }
    plan->patches.push_back(patch);
  }
  return true;
}

inline bool read_allocations(PyObject* outputs, Plan* plan) {
  for (PyObject* output : items(outputs)) {
    PyObject *function, *arguments;
    if (!PyTuple_Check(output)) return raise(PyExc_TypeError, "an output must be (function, arguments)");
    if (!PyArg_ParseTuple(output, "OO!:output", &function, &PyTuple_Type, &arguments)) return false;
    plan->outputs.push_back({Reference(Py_NewRef(function)), Reference(Py_NewRef(arguments))});
  }
  return true;
}

// The values of a launch, with the addresses of this call in them.
inline bool read_values(PyObject* values, Plan* plan) {
  const Kernel& kernel = *plan->kernel;
  Py_ssize_t count = PyTuple_Size(values);
  if (count != kernel.values) return raise_count(kernel, LAUNCH_VALUES + count);
  Frame frame;
  if (!pack(kernel, items(values).data(), frame)) return false;
  size_t maps = 0;
  for (const Param& param : kernel.params) maps += param.kind == TENSOR_MAP;
  plan->scalars.assign(frame.scalars, frame.scalars + kernel.params.size() - maps);
  plan->maps.assign(frame.map_values, frame.map_values + maps);
  return true;
}

inline PyObject* calls_add(PyObject* self, PyObject* given, PyObject* keywords) {
  static const char* names[] = {"args", "kernel", "device", "grid", "values", "addresses", "outputs", nullptr};
  PyObject *args, *kernel, *device, *grid, *values, *addresses, *outputs;
  if (!PyArg_ParseTupleAndKeywords(given, keywords, "O!O!OO!O!O!O!:add", const_cast<char**>(names), &PyTuple_Type,
                                   &args, kernel_type, &kernel, &device, &PyTuple_Type, &grid, &PyTuple_Type, &values,
                                   &PyTuple_Type, &addresses, &PyTuple_Type, &outputs)) {
    return nullptr;
  }
  BoundCalls& calls = *state_of<BoundCalls>(self);
  std::vector<PyObject*> arguments = items(args), sizes = items(grid);
  if (arguments.size() != calls.names.size() || sizes.size() != 3) {
    return raise(PyExc_TypeError, "wanted all " + std::to_string(calls.names.size()) +
                                      " arguments of the op and 3 sizes of the grid, got " +
                                      std::to_string(arguments.size()) + " and " + std::to_string(sizes.size()));
  }
  auto plan = std::make_shared<Plan>();
  plan->kernel = state_of<Kernel>(kernel);
  if (!read_allocations(outputs, plan.get())) return nullptr;
  if (arguments.size() + plan->outputs.size() > MAX_OPERANDS) {
    return raise(PyExc_ValueError, "wanted at most " + std::to_string(MAX_OPERANDS) + " arguments and outputs");
  }
  Key key;
  if (!calls.describe(arguments.data(), key)) Py_RETURN_FALSE;
  if (!as_device(*plan->kernel, device, &plan->device) || !as_grid(*plan->kernel, sizes.data(), plan->grid) ||
      !read_values(values, plan.get()) || !read_patches(calls, key, addresses, plan.get())) {
    return nullptr;
  }
  plan->key.assign(key.words, key.words + key.count);
  for (PyObject* argument : arguments) {
    if (!calls.is_tensor(argument)) plan->constants.emplace_back(Py_NewRef(argument));
  }
  calls.add(key, std::move(plan));
  Py_RETURN_TRUE;
}

inline PyObject* calls_clear(PyObject* self, PyObject*) {
  state_of<BoundCalls>(self)->clear();
  Py_RETURN_NONE;
}

inline Py_ssize_t calls_length(PyObject* self) {
  return static_cast<Py_ssize_t>(state_of<BoundCalls>(self)->plans.size());
}

// The framework's table, of a version that is known here; null with an exception set.
inline const DLExchangeApi* exchange_of(PyObject* capsule) {
  auto* api = static_cast<const DLExchangeApi*>(PyCapsule_GetPointer(capsule, DLPACK_CAPSULE));
  if (!api) return nullptr;
  uint32_t major = api->major;
  while (api && api->major > DLPACK_MAJOR) api = api->previous;
  if (api && api->major == DLPACK_MAJOR && api->tensor_from_object && api->current_stream) return api;
  raise(PyExc_ValueError, "wanted a DLPack exchange API of version " + std::to_string(DLPACK_MAJOR) +
                              " that shows tensors, got one of version " + std::to_string(major));
  return nullptr;
}

inline PyObject* calls_new(PyTypeObject* type, PyObject* given, PyObject* keywords) {
  static const char* arguments[] = {"exchange", "names", "defaults", "tensor_types", "constant_types", "unusual",
                                    "device_type", "limit", "apart", nullptr};
  PyObject *exchange, *names, *defaults, *tensor_types, *constant_types, *unusual;
  int device_type = DLPACK_CUDA, apart = 0;
  Py_ssize_t limit = 4096;
  if (!PyArg_ParseTupleAndKeywords(given, keywords, "OO!O!O!O!O!|inp:BoundCalls", const_cast<char**>(arguments),
                                   &exchange, &PyTuple_Type, &names, &PyTuple_Type, &defaults, &PyTuple_Type,
                                   &tensor_types, &PyTuple_Type, &constant_types, &PyTuple_Type, &unusual,
                                   &device_type, &limit, &apart)) {
    return nullptr;
  }
  auto calls = std::make_shared<BoundCalls>();
  calls->names = references(names);
  calls->defaults = references(defaults);
  if (calls->names.size() > MAX_OPERANDS || calls->defaults.size() > calls->names.size() || limit < 1) {
    return raise(PyExc_ValueError, "wanted at most " + std::to_string(MAX_OPERANDS) +
                                       " names, no more defaults than names, and a limit of 1 or more");
  }
  for (const Reference& name : calls->names) {
    if (!PyUnicode_Check(name.get())) return raise(PyExc_TypeError, "wanted names that are strings");
  }
  if (!(calls->api = exchange_of(exchange))) return nullptr;
  calls->capsule = Reference(Py_NewRef(exchange));
  calls->tensor_types = references(tensor_types);
  calls->constant_types = references(constant_types);
  calls->unusual = references(unusual);
  calls->device_type = device_type;
  calls->limit = static_cast<size_t>(limit);
  calls->apart = apart;
  return wrap(type, std::move(calls));
}

inline PyMethodDef calls_methods[] = {
    {"run", method(calls_run), METH_FASTCALL | METH_KEYWORDS,
     "run(*args, **kwargs) -> the op's outputs, or NotImplemented with nothing done where nothing is bound"},
    {"add", method(calls_add), METH_VARARGS | METH_KEYWORDS,
     "add(args, kernel, device, grid, values, addresses, outputs) -> whether calls of this kind are bound now"},
    {"clear", calls_clear, METH_NOARGS, "clear(): forget every plan"},
    {}};

inline PyTypeObject* make_calls_type() {
  return make_type<BoundCalls>("pyptx_ops._launch.BoundCalls",
                               {{Py_tp_methods, calls_methods},
                                {Py_tp_new, reinterpret_cast<void*>(calls_new)},
                                {Py_sq_length, reinterpret_cast<void*>(calls_length)}});
}
