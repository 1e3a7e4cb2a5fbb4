// pyptx_ops._sim: the simulator's core for Python. Torch-free, abi3.
//
//   program = compile(words, names, memory)   words: the kernel as the loader encodes it, int64
//   executed, problem, events, traffic = run(program, grid, params, maps, segments, fresh, policy, seed, limit,
//                                            multiprocessors, resident, interleave, trace, lint)
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <cstring>
#include <set>

#include "forms.h"
#include "machine.h"

namespace {

using namespace sim;

const char* const CAPSULE = "pyptx_ops._sim.Program";

// Reads the loader's words one after the other.
struct Words {
  const s64* at;
  const s64* end;
  s64 next() {
    if (at == end) throw Problem("program", "the encoded kernel ends too early");
    return *at++;
  }
  int small() { return static_cast<int>(next()); }
};

Words words_of(const char* bytes, Py_ssize_t size) {
  const s64* first = reinterpret_cast<const s64*>(bytes);
  return {first, first + size / static_cast<Py_ssize_t>(sizeof(s64))};
}

Operand read_operand(Words& words, const Program& program) {
  Operand operand;
  operand.kind = static_cast<Operand::Kind>(words.small());
  operand.slot = words.small();
  operand.negated = words.next() != 0;
  operand.value = words.next();
  operand.offset = words.next();
  if (operand.kind == Operand::literal) {
    operand.lanes64 = std::make_shared<std::vector<u64>>(LANES, static_cast<u64>(operand.value));
    operand.lanes32 = std::make_shared<std::vector<u32>>(LANES, static_cast<u32>(operand.value));
  } else if (operand.kind == Operand::reg) {
    if (operand.slot < 0 || operand.slot >= static_cast<int>(program.slots.size()))
      throw Problem("program", "a register slot is out of range");
    operand.wide = program.slots[static_cast<size_t>(operand.slot)].wide;
  }
  return operand;
}

Ins read_instruction(Words& words, const Program& program) {
  Ins ins;
  ins.op = static_cast<Op>(words.small());
  ins.type = static_cast<Type>(words.small());
  ins.src = static_cast<Type>(words.small());
  ins.src_b = static_cast<Type>(words.small());
  ins.rnd = static_cast<Word>(words.small());
  ins.cmp = static_cast<Word>(words.small());
  ins.join = static_cast<Word>(words.small());
  ins.space = static_cast<Word>(words.small());
  ins.mode = static_cast<Word>(words.small());
  ins.flags = static_cast<u32>(words.next());
  ins.n = words.small();
  ins.m = words.small();
  ins.k = words.small();
  ins.order = static_cast<u32>(words.next());
  ins.line = words.small();
  ins.guard = words.small();
  ins.guard_not = words.next() != 0;
  int args = words.small();
  for (int a = 0; a < args; ++a) {
    int count = words.small();
    ins.first.push_back(static_cast<int>(ins.operands.size()));
    ins.count.push_back(count);
    for (int i = 0; i < count; ++i) ins.operands.push_back(read_operand(words, program));
  }
  return ins;
}

// The accumulators of all wgmmas, and what they read A from.
std::vector<int> fragments_of(const Program& program) {
  std::set<int> found;
  for (const Ins& ins : program.code) {
    if (ins.op != Op::wgmma) continue;
    for (int arg : {int(WGMMA_D), int(WGMMA_A)})
      for (int i = 0; i < ins.size(arg) && ins.size(arg) > 1; ++i) found.insert(ins.arg(arg, i).slot);
  }
  return {found.begin(), found.end()};
}

std::unique_ptr<Program> read_program(Words words, std::string names) {
  auto program = std::make_unique<Program>();
  for (u32& size : program->block) size = static_cast<u32>(words.next());
  for (u32& size : program->cluster_shape) size = static_cast<u32>(words.next());
  program->cluster = program->cluster_shape[0] * program->cluster_shape[1] * program->cluster_shape[2];
  program->shared_bytes = static_cast<u32>(words.next());
  program->dynamic_bytes = static_cast<u32>(words.next());
  program->constant_bytes = static_cast<u32>(words.next());
  program->registers = static_cast<u32>(words.next());
  program->registers_given = words.next() != 0;
  int slots = words.small(), presets = words.small(), count = words.small();
  size_t start = 0;
  for (int i = 0; i < slots; ++i) {
    int bits = words.small();
    size_t end = names.find('\n', start);
    program->slots.push_back({program->file_bytes, bits == 64, bits == 1, names.substr(start, end - start)});
    start = end == std::string::npos ? names.size() : end + 1;
    program->file_bytes += bits == 64 ? 8 * LANES : 4 * LANES;
  }
  for (int i = 0; i < presets; ++i) {
    int slot = words.small(), what = words.small();
    program->presets.push_back({slot, static_cast<Special>(what), words.next()});
  }
  for (int i = 0; i < count; ++i) {
    program->code.push_back(read_instruction(words, *program));
    Ins& ins = program->code.back();
    try {
      if (is_arithmetic(ins.op)) settle(ins, *program);
    } catch (Problem& problem) {
      problem.line = ins.line;
      throw;
    }
  }
  program->fragments = fragments_of(*program);
  return program;
}

void free_program(PyObject* capsule) { delete static_cast<Program*>(PyCapsule_GetPointer(capsule, CAPSULE)); }

PyObject* compile_program(PyObject*, PyObject* args) {
  const char *bytes, *names, *memory;
  Py_ssize_t size, memory_size;
  if (!PyArg_ParseTuple(args, "y#sy#", &bytes, &size, &names, &memory, &memory_size)) return nullptr;
  try {
    auto program = read_program(words_of(bytes, size), names);
    program->memory.resize(static_cast<size_t>(memory_size) + MEMORY_ALIGN);
    std::memcpy(reinterpret_cast<u8*>(program->memory_base()), memory, static_cast<size_t>(memory_size));
    PyObject* capsule = PyCapsule_New(program.get(), CAPSULE, free_program);
    if (capsule) program.release();
    return capsule;
  } catch (const Problem& problem) {
    PyObject* arguments = Py_BuildValue("(is)", problem.line, problem.what());
    if (arguments) PyErr_SetObject(PyExc_ValueError, arguments);
    Py_XDECREF(arguments);
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

void read_window(Words& words, TensorMap& map) {
  map.pixels = static_cast<u32>(words.next());
  for (int d = 1; d < map.rank; ++d) map.box[d] = 1;
  for (s32* corner : {map.lower, map.upper})
    for (int d = 0; d + 2 < map.rank; ++d) corner[d] = words.small();
  for (int d = 1; d + 1 < map.rank; ++d) map.steps[d] = static_cast<u32>(words.next());
}

// A map of im2col has no bytes: where its fields lie is not known.
Launch read_launch(Words maps, Words segments, Words fresh, const char* params, Py_ssize_t size) {
  Launch launch;
  launch.params.assign(params, params + size);
  while (maps.at != maps.end) {
    u32 offset = static_cast<u32>(maps.next());
    TensorMap& map = launch.maps[offset];
    map.address = static_cast<u64>(maps.next());
    map.rank = maps.small();
    int code = maps.small();
    map.set_type(code);
    map.swizzle = maps.small();
    map.nan = maps.next() != 0;
    if (map.rank < 1 || map.rank > 5) throw Problem("tensor map", "a tensor map has 1 to 5 dimensions");
    for (int d = 0; d < map.rank; ++d) map.dims[d] = static_cast<u64>(maps.next());
    for (int d = 0; d + 1 < map.rank; ++d) map.strides[d] = static_cast<u64>(maps.next());
    map.im2col = maps.next() != 0;
    for (int d = 0; d < (map.im2col ? 1 : map.rank); ++d) map.box[d] = static_cast<u32>(maps.next());
    if (map.im2col) read_window(maps, map);
    map.check();
    if (!map.im2col && offset + MAP_BYTES <= launch.params.size()) encode(map, code, launch.params.data() + offset);
  }
  while (segments.at != segments.end) {
    u64 base = static_cast<u64>(segments.next());
    launch.segments.push_back({base, static_cast<u64>(segments.next())});
  }
  while (fresh.at != fresh.end) {
    u64 base = static_cast<u64>(fresh.next()), size = static_cast<u64>(fresh.next());
    launch.fresh.push_back({{base, size}, std::vector<u8>(size)});
  }
  return launch;
}

PyObject* problem_of(const Problem& problem) {
  PyObject* others = PyList_New(0);
  if (!others) return nullptr;
  for (const auto& [line, text] : problem.others) {
    PyObject* item = Py_BuildValue("(is)", line, text.c_str());
    if (!item || PyList_Append(others, item)) {
      Py_XDECREF(item);
      Py_DECREF(others);
      return nullptr;
    }
    Py_DECREF(item);
  }
  return Py_BuildValue("(ssisN)", problem.kind.c_str(), problem.what(), problem.line, problem.where.c_str(), others);
}

template <class T>
PyObject* bytes_of(const std::vector<T>& items) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(items.data()),
                                   static_cast<Py_ssize_t>(items.size() * sizeof(T)));
}

PyObject* run_program(PyObject*, PyObject* args) {
  PyObject* capsule;
  const char *params, *maps, *segments, *fresh;
  Py_ssize_t params_size, maps_size, segments_size, fresh_size;
  unsigned grid[3];
  int policy, interleave, trace, lint;
  unsigned multiprocessors, resident;
  unsigned long long seed, limit;
  if (!PyArg_ParseTuple(args, "O(III)y#y#y#y#iKKIIppp", &capsule, &grid[0], &grid[1], &grid[2], &params, &params_size,
                        &maps, &maps_size, &segments, &segments_size, &fresh, &fresh_size, &policy, &seed, &limit,
                        &multiprocessors, &resident, &interleave, &trace, &lint))
    return nullptr;
  const auto* program = static_cast<const Program*>(PyCapsule_GetPointer(capsule, CAPSULE));
  if (!program) return nullptr;
  u64 executed = 0;
  std::unique_ptr<Problem> found;
  std::string failure;
  std::vector<Event> events;
  std::vector<Traffic> traffic;
  PyThreadState* state = PyEval_SaveThread();
  try {
    Launch launch = read_launch(words_of(maps, maps_size), words_of(segments, segments_size),
                                words_of(fresh, fresh_size), params, params_size);
    std::memcpy(launch.grid, grid, sizeof grid);
    Settings settings{static_cast<Policy>(policy), seed, limit, multiprocessors, resident, interleave != 0, trace != 0,
                      lint != 0};
    Machine machine(*program, std::move(launch), settings);
    try {
      machine.run();
    } catch (const Problem& problem) {
      found = std::make_unique<Problem>(problem);
    }
    executed = machine.executed;
    if (trace) machine.trace_open();
    events = std::move(machine.events);
    traffic = machine.traffic();
  } catch (const Problem& problem) {
    found = std::make_unique<Problem>(problem);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  PyEval_RestoreThread(state);
  if (!failure.empty()) {
    PyErr_SetString(PyExc_RuntimeError, failure.c_str());
    return nullptr;
  }
  PyObject* told = found ? problem_of(*found) : Py_BuildValue("");
  PyObject *slices = bytes_of(events), *accesses = bytes_of(traffic);
  return Py_BuildValue("(KNNN)", executed, told, slices, accesses);
}

PyObject* set_vectors(PyObject*, PyObject* wanted) {
  int truth = PyObject_IsTrue(wanted);
  if (truth < 0) return nullptr;
  use_vectors(truth != 0);
  return PyBool_FromLong(vectors());
}

PyMethodDef methods[] = {
    {"use_vectors", set_vectors, METH_O, "Whether kernels compiled from now on use AVX2 and FMA; whether they do."},
    {"compile", compile_program, METH_VARARGS,
     "The program of encoded words, the names of its registers, and the module's memory."},
    {"run", run_program, METH_VARARGS, "Runs a grid; (instructions, problem or None, events, traffic)."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_sim", "The simulator's core.", -1, methods, nullptr, nullptr, nullptr, nullptr};

bool add_names(PyObject* module, const char* name, std::initializer_list<const char*> texts) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(texts.size()));
  Py_ssize_t i = 0;
  for (const char* text : texts) PyTuple_SetItem(tuple, i++, PyUnicode_FromString(text));
  return PyModule_AddObject(module, name, tuple) == 0;
}

}  // namespace

PyMODINIT_FUNC PyInit__sim() {
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
#define X(name, text) text,
  bool ok = add_names(module, "OPERATIONS", {SIM_OPERATIONS(X)}) && add_names(module, "WORDS", {SIM_WORDS(X)}) &&
            add_names(module, "SPECIALS", {SIM_SPECIALS(X)});
#undef X
#define X(name) #name,
  ok = ok && add_names(module, "TYPES", {SIM_TYPES(X)});
#undef X
  return ok ? module : nullptr;
}
