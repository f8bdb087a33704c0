// The type of kernels: a table of known calls in front of the general path, which is written in Python.
#pragma once

#include "recording.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

constexpr size_t MOST_CALLS = 4096;  // that one kernel knows

class Kernel {
  using Known = std::unordered_map<Key, std::shared_ptr<Program>, Hash>;

 public:
  explicit Kernel(PyObject* resolve) : resolve_(Ref::to(resolve)) { all().insert(this); }
  ~Kernel() { all().erase(this); }
  Kernel(const Kernel&) = delete;

  // Programs were set aside or dropped: no kernel may keep them.
  static void forget_all() {
    std::vector<Known> forgotten;
    for (Kernel* kernel : all()) forgotten.emplace_back().swap(kernel->known_);
  }

  size_t known() const { return known_.size(); }

  // The general path; it is made at the first call.
  Ref general() { return general_ || resolve() ? general_ : Ref(); }

  Ref call(PyObject* args, PyObject* kwargs) {
    if (!general_ && !resolve()) return {};
    if (!knows_calls_) return run_general(args, kwargs);
    Key unknown;
    {
      Borrowed call;
      if (describe(args, kwargs, *call)) {
        auto found = known_.find(call->key);
        if (found == known_.end()) {
          unknown = call->key;
        } else if (std::shared_ptr<Program> program = found->second) {  // a copy: another thread may forget it
          bool unusual = true;
          Ref result = run(*program, *call, unusual);
          if (!unusual) return result;
        }
      }
      PyErr_Clear();
    }
    Ref result = run_general(args, kwargs);
    if (result && !unknown.empty()) learn(std::move(unknown), args, kwargs);
    return result;
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(resolve_.get());
    Py_VISIT(general_.get());
    Py_VISIT(describe_.get());
    for (const auto& [key, program] : known_) {
      if (program == nullptr) continue;
      if (int stopped = program->traverse(visit, arg)) return stopped;
    }
    return 0;
  }

  void clear() {
    Known().swap(known_);
    Ref resolve = std::move(resolve_), general = std::move(general_), describe = std::move(describe_);
  }

 private:
  static std::unordered_set<Kernel*>& all() {
    static auto* kernels = new std::unordered_set<Kernel*>();  // kernels are freed after static objects
    return *kernels;
  }

  // The general path, what it knows of the arguments, and what describes the program of a call. The Operation is made
  // at the first call.
  bool resolve() {
    Ref found(PyObject_CallNoArgs(resolve_.get()));
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
      if (!call.add(Kind(kinds_[i]), PyTuple_GET_ITEM(args, i))) return false;
    }
    if (kwargs == nullptr || PyDict_GET_SIZE(kwargs) == 0) return true;
    // As the general path, with the defaults of all that is left out. A call without keywords has fewer words.
    Py_ssize_t used = 0;
    for (size_t i = count; i < kinds_.size(); ++i) {
      PyObject* argument = PyDict_GetItemWithError(kwargs, PyTuple_GET_ITEM(names_.get(), i));
      used += argument != nullptr;
      if (argument == nullptr) argument = PyTuple_GET_ITEM(defaults_.get(), i);
      if (!call.add(Kind(kinds_[i]), argument)) return false;
    }
    return used == PyDict_GET_SIZE(kwargs);
  }

  // After a call that was not known: its program, if it is one that `Program::run` may run.
  void learn(Key key, PyObject* args, PyObject* kwargs) {
    Ref callee = describe_;
    Ref description(PyObject_Call(callee.get(), args, kwargs));
    bool is_refused = description.get() == Py_False;  // for good
    std::shared_ptr<Program> program;
    if (description && description.get() != Py_None && !is_refused) program = Program::from(description.get());
    PyErr_Clear();  // the call itself succeeded
    if (program == nullptr && !is_refused) return;
    if (known_.size() >= MOST_CALLS) Known().swap(known_);
    program.swap(known_[std::move(key)]);  // what was there is freed when the table is whole again
  }

  static Ref run(Program& program, const Call& call, bool& unusual) {
    PyObject* recorder = PyDict_GetItemWithError(engine.deferring, names.recorder);
    if (recorder == nullptr) return {};
    return recorder == Py_None ? program.run(call, unusual) : record(recorder, program, call, unusual);
  }

  Ref resolve_, general_, names_, defaults_, describe_;
  std::string kinds_;
  bool knows_calls_ = false;
  // Freeing a program may run Python code that calls this kernel: so it is swapped out of the table first.
  Known known_;
};
