// The type of kernels: a table of known calls in front of the general path, which is written in Python.
#pragma once

#include "python_arguments.h"
#include "recording.h"

#include <string>
#include <unordered_map>
#include <unordered_set>

constexpr size_t MOST_CALLS = 4096;  // that one table has

// The programs of calls, by what the calls depend on. The program is null for a call that only the general path runs.
class KnownCalls {
  using Table = std::unordered_map<Key, std::shared_ptr<Program>, Hash>;

 public:
  KnownCalls() { all().insert(this); }
  ~KnownCalls() {
    all().erase(this);
    // torch's dispatcher ends after the interpreter. Nothing can be freed then.
    if (!Py_IsInitialized()) new Table(std::move(table_));
  }
  KnownCalls(const KnownCalls&) = delete;

  // Programs were set aside or dropped: no table may keep them.
  static void forget_all() {
    std::vector<Table> forgotten;
    for (KnownCalls* known : all()) forgotten.emplace_back().swap(known->table_);
  }

  // Whether the call is known, and its program. The caller gets a share of it: another thread may forget the call.
  bool find(const Key& key, std::shared_ptr<Program>& program) const {
    auto found = table_.find(key);
    if (found == table_.end()) return false;
    program = found->second;
    return true;
  }

  // Freeing a program may run Python code that calls a kernel. So what leaves the table is freed after it has left.
  void add(Key key, std::shared_ptr<Program> program) {
    if (table_.size() >= MOST_CALLS) clear();
    program.swap(table_[std::move(key)]);
  }

  void clear() { Table().swap(table_); }
  size_t size() const { return table_.size(); }

  int traverse(visitproc visit, void* arg) const {
    for (const auto& [key, program] : table_) {
      if (program == nullptr) continue;
      if (int stopped = program->traverse(visit, arg)) return stopped;
    }
    return 0;
  }

 private:
  static std::unordered_set<KnownCalls*>& all() {
    static auto* tables = new std::unordered_set<KnownCalls*>();  // kernels are freed after static objects
    return *tables;
  }

  Table table_;
};

// Runs a program, or records it if execution is deferred.
inline Outcome run(Program& program, const Call& call, Results& results) {
  PyObject* recorder = PyDict_GetItemWithError(engine.deferring, names.recorder);
  if (recorder == nullptr) return Outcome::UNUSUAL;
  return recorder == Py_None ? program.run(call, results) : record(recorder, program, call, results);
}

// What an operator returns to Python.
inline Ref to_python(Structure structure, Results results) {
  auto wrapped = [](at::Tensor& tensor) {
    return tensor.defined() ? Ref(THPVariable_Wrap(std::move(tensor))) : Ref::to(Py_None);
  };
  if (structure == Structure::SINGLE) return wrapped(results[0]);
  bool is_tuple = structure == Structure::TUPLE;
  Ref all(is_tuple ? PyTuple_New(results.size()) : PyList_New(results.size()));
  for (size_t i = 0; all && i < results.size(); ++i) {
    Ref item = wrapped(results[i]);
    if (!item) return {};
    is_tuple ? PyTuple_SET_ITEM(all.get(), i, item.release()) : PyList_SET_ITEM(all.get(), i, item.release());
  }
  return all;
}

// A kernel as a Python function.
class Kernel {
 public:
  explicit Kernel(PyObject* resolve) : resolve_(Ref::to(resolve)) {}

  Ref call(PyObject* args, PyObject* kwargs) {
    if (!general_ && !resolve()) return {};
    last_program().reset();
    if (!knows_calls_) return run_general(args, kwargs);
    Key unknown;
    std::shared_ptr<Program> program;
    {
      Borrowed call;
      if (describe(args, kwargs, *call)) {
        if (!known_.find(call->key, program)) {
          unknown = call->key;
        } else if (program != nullptr) {
          Results results;
          Outcome outcome = run(*program, *call, results);
          if (outcome == Outcome::RAISED) return {};
          if (outcome == Outcome::DONE) {
            last_program() = program;
            return to_python(program->structure(), std::move(results));
          }
        }
      }
      if (!drop_exception()) return {};
    }
    Ref result = run_general(args, kwargs);
    if (result && !unknown.empty()) program = learn(std::move(unknown), args, kwargs);
    last_program() = program;
    return PyErr_Occurred() ? Ref() : std::move(result);
  }

  // What the kernel knows of its operator's arguments; false if it takes no calls itself.
  bool knows_calls() const { return knows_calls_; }
  const std::string& kinds() const { return kinds_; }

  // The program of this thread's last call of a kernel, if it is known. A thread that ends has no GIL to free one.
  static std::weak_ptr<Program>& last_program() {
    static thread_local std::weak_ptr<Program> program;
    return program;
  }

  size_t known() const { return known_.size(); }

  // The general path; it is made at the first call.
  Ref general() { return general_ || resolve() ? general_ : Ref(); }

  int traverse(visitproc visit, void* arg) const {
    for (const Ref* object : {&resolve_, &general_, &names_, &defaults_, &describe_}) Py_VISIT(object->get());
    return known_.traverse(visit, arg);
  }

  void clear() {
    known_.clear();
    for (Ref* object : {&resolve_, &general_, &names_, &defaults_, &describe_}) Ref(std::move(*object));
  }

 private:
  // The general path, what it knows of the arguments, and what describes the program of a call. The Operation is made
  // at the first call.
  bool resolve() {
    Ref callee = resolve_;
    if (!callee) {  // the garbage collector has cleared it, and then something else of the cycle called it
      PyErr_SetString(PyExc_ReferenceError, "this kernel has been freed");
      return false;
    }
    Ref found(PyObject_CallNoArgs(callee.get()));
    PyObject *general, *kinds, *argument_names, *defaults, *describe;
    if (!found || !PyArg_ParseTuple(found.get(), "OOOOO", &general, &kinds, &argument_names, &defaults, &describe))
      return false;
    if (general_) return true;  // another thread was faster
    if (kinds != Py_None) {
      kinds_.assign(PyBytes_AS_STRING(kinds), PyBytes_GET_SIZE(kinds));
      names_ = Ref::to(argument_names);
      defaults_ = Ref::to(defaults);
      describe_ = Ref::to(describe);
      knows_calls_ = true;
    }
    general_ = Ref::to(general);
    return true;
  }

  Ref run_general(PyObject* args, PyObject* kwargs) const {
    Ref callee = general_;
    return Ref(PyObject_Call(callee.get(), args, kwargs));
  }

  bool describe(PyObject* args, PyObject* kwargs, Call& call) const {
    size_t count = PyTuple_GET_SIZE(args);
    if (count > kinds_.size() || !add_state(call.key)) return false;
    call.key.push_back(count);
    for (size_t i = 0; i < count; ++i) {
      if (!add(call, Kind(kinds_[i]), PyTuple_GET_ITEM(args, i))) return false;
    }
    if (kwargs == nullptr || PyDict_GET_SIZE(kwargs) == 0) return true;
    // As the general path, with the defaults of all that is left out. A call without keywords has fewer words.
    Py_ssize_t used = 0;
    for (size_t i = count; i < kinds_.size(); ++i) {
      PyObject* argument = PyDict_GetItemWithError(kwargs, PyTuple_GET_ITEM(names_.get(), i));
      used += argument != nullptr;
      if (argument == nullptr) argument = PyTuple_GET_ITEM(defaults_.get(), i);
      if (!add(call, Kind(kinds_[i]), argument)) return false;
    }
    return used == PyDict_GET_SIZE(kwargs);
  }

  // After a call that was not known: its program, if it is one that `Program::run` may run.
  std::shared_ptr<Program> learn(Key key, PyObject* args, PyObject* kwargs) {
    Ref callee = describe_;
    Ref description(PyObject_Call(callee.get(), args, kwargs));
    bool is_refused = description.get() == Py_False;  // for good
    std::shared_ptr<Program> program;
    if (description && description.get() != Py_None && !is_refused) program = Program::from(description.get());
    if (!drop_exception()) return nullptr;  // the call itself succeeded
    if (program != nullptr || is_refused) known_.add(std::move(key), program);
    return program;
  }

  Ref resolve_, general_, names_, defaults_, describe_;
  std::string kinds_;
  bool knows_calls_ = false;
  KnownCalls known_;
};
