// The type of kernels: a table of known calls in front of the general path, which is written in Python.
#pragma once

#include "known.h"
#include "python_arguments.h"

#include <string>
#include <unordered_map>

constexpr size_t MOST_CALLS = 4096;  // that one table has

// What runs calls, by what the calls depend on: null for a call that only the general path runs.
class KnownCalls {
  using Table = std::unordered_map<Key, std::shared_ptr<Known>, Hash>;

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

  // Whether the call is known, and what runs it. The caller gets a share of it: another thread may forget the call.
  bool find(const Key& key, std::shared_ptr<Known>& known) const {
    auto found = table_.find(key);
    if (found == table_.end()) return false;
    known = found->second;
    return true;
  }

  // Freeing a program may run Python code that calls a kernel. So what leaves the table is freed after it has left.
  void add(Key key, std::shared_ptr<Known> known) {
    if (table_.size() >= MOST_CALLS) clear();
    known.swap(table_[std::move(key)]);
  }

  void clear() { Table().swap(table_); }
  size_t size() const { return table_.size(); }

  int traverse(visitproc visit, void* arg) const {
    for (const auto& [key, known] : table_) {
      if (known == nullptr) continue;
      if (int stopped = known->traverse(visit, arg)) return stopped;
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

// A kernel as a Python function.
class Kernel {
 public:
  explicit Kernel(PyObject* resolve) : resolve_(Ref::to(resolve)) {}

  Ref call(PyObject* args, PyObject* kwargs) {
    if (!general_ && !resolve()) return {};
    last_known().reset();
    if (!knows_calls_) return run_general(args, kwargs);
    if (writes_ && current_recorder() == Py_None) return run_general(args, kwargs);  // it is only recorded here
    Key unknown;
    std::shared_ptr<Known> known;
    {
      Borrowed call;
      if (describe(args, kwargs, *call)) {
        if (!known_.find(call->key, known)) {
          unknown = call->key;
        } else if (known != nullptr) {
          Results results;
          Outcome outcome = known->run(*call, results);
          if (outcome == Outcome::RAISED) return {};
          if (outcome == Outcome::DONE) {
            last_known() = known;
            return known->to_python(std::move(results));
          }
        }
      }
      if (!drop_exception()) return {};
    }
    Ref result = run_general(args, kwargs);
    if (result && !unknown.empty()) known = learn(std::move(unknown), args, kwargs);
    last_known() = known;
    return PyErr_Occurred() ? Ref() : std::move(result);
  }

  // What the kernel knows of its operator's arguments; false if it takes no calls itself.
  bool knows_calls() const { return knows_calls_; }
  const std::string& kinds() const { return kinds_; }

  // What ran this thread's last call of a kernel, if that is known. A thread that ends has no GIL to free it.
  static std::weak_ptr<Known>& last_known() {
    static thread_local std::weak_ptr<Known> known;
    return known;
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
    int writes;
    if (!found ||
        !PyArg_ParseTuple(found.get(), "OOOOpO", &general, &kinds, &argument_names, &defaults, &writes, &describe))
      return false;
    if (general_) return true;  // another thread was faster
    if (kinds != Py_None) {
      kinds_.assign(PyBytes_AS_STRING(kinds), PyBytes_GET_SIZE(kinds));
      names_ = Ref::to(argument_names);
      defaults_ = Ref::to(defaults);
      describe_ = Ref::to(describe);
      writes_ = writes != 0;
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
    bool by_value = kinds_.empty();  // it is a JAX function, which has no schema
    if ((count > kinds_.size() && !by_value) || !add_state(call.key)) return false;
    call.key.push_back(count);
    for (size_t i = 0; i < count; ++i) {
      PyObject* argument = PyTuple_GET_ITEM(args, i);
      if (!add(call, by_value ? kind_by_value(argument) : Kind(kinds_[i]), argument)) return false;
    }
    // Nothing but the current device determines where a call without tensors runs. How tensors overlap, of which one is
    // written, depends on more than the key has.
    return add_keywords(count, kwargs, call) && !call.buffers.empty() && (!writes_ || call.is_disjoint());
  }

  bool add_keywords(size_t count, PyObject* kwargs, Call& call) const {
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

  // After a call that was not known: its programs, if they are such that `Known::run` may run them.
  std::shared_ptr<Known> learn(Key key, PyObject* args, PyObject* kwargs) {
    Ref callee = describe_;
    Ref description(PyObject_Call(callee.get(), args, kwargs));
    bool is_refused = description.get() == Py_False;  // for good
    std::shared_ptr<Known> known;
    if (description && description.get() != Py_None && !is_refused) known = Known::from(description.get());
    if (!drop_exception()) return nullptr;  // the call itself succeeded
    if (known != nullptr || is_refused) known_.add(std::move(key), known);
    return known;
  }

  Ref resolve_, general_, names_, defaults_, describe_;
  std::string kinds_;
  bool knows_calls_ = false;
  bool writes_ = false;
  KnownCalls known_;
};
