// What the files of the extension share on the Python side: objects that hold C++ state, and errors.
#pragma once

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

inline PyObject* LaunchError;     // RuntimeError: a driver call failed
inline PyObject* DriverNotFound;  // LaunchError: no usable driver library
inline PyTypeObject *library_type, *kernel_type;

struct ReleaseGil {
  PyThreadState* state = PyEval_SaveThread();
  ~ReleaseGil() { PyEval_RestoreThread(state); }
};

template <class T>
struct Object {
  PyObject_HEAD
  std::shared_ptr<T> state;
};

template <class T>
const std::shared_ptr<T>& state_of(PyObject* object) {
  return reinterpret_cast<Object<T>*>(object)->state;
}

template <class T>
PyObject* wrap(PyTypeObject* type, std::shared_ptr<T> state) {
  PyObject* object = PyType_GenericAlloc(type, 0);
  if (object) new (&reinterpret_cast<Object<T>*>(object)->state) std::shared_ptr<T>(std::move(state));
  return object;
}

template <class T>
void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  reinterpret_cast<Object<T>*>(object)->state.~shared_ptr();
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

inline PyObject* raise(PyObject* type, const std::string& text) {
  PyErr_SetString(type, text.c_str());
  return nullptr;
}

inline std::string quoted(const std::string& text) { return "'" + text + "'"; }

template <class T>
std::string join(const T* values, int count) {
  std::string text = "(";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + ")";
}

template <class F>
PyCFunction method(F* function) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)); }

template <class T>
PyTypeObject* make_type(const char* name, std::vector<PyType_Slot> slots) {
  bool creates = false;
  for (const PyType_Slot& slot : slots) creates = creates || slot.slot == Py_tp_new;
  slots.push_back({Py_tp_dealloc, reinterpret_cast<void*>(dealloc<T>)});
  slots.push_back({0, nullptr});
  unsigned flags = Py_TPFLAGS_DEFAULT | (creates ? 0u : Py_TPFLAGS_DISALLOW_INSTANTIATION);
  PyType_Spec spec = {name, sizeof(Object<T>), 0, flags, slots.data()};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}
