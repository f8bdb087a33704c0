// Recording a call instead of running it: `Recorder._recorded` of `deferred/recorder.py`, for a call whose program is
// known and writes nothing. The window and its tree are the objects of `deferred/`.
#pragma once

#include "program.h"

// The slots of those objects, set by `configure_recording`.
struct Recording {
  PyTypeObject* recorder = nullptr;
  Py_ssize_t lock, window, most_calls;
  struct { Py_ssize_t node, leader, buffers, inputs, indices, numbers, offsets; } of_window;
  struct { Py_ssize_t next, results, inputs, views, numbers, calls, nbytes; } of_node;
  long least_loop, most_constant;
  long long most_bytes;
};

inline Recording recording;

// Holds the recorder's lock, which other threads wait for without the GIL.
class Locked {
 public:
  explicit Locked(PyObject* lock) : lock_(Ref::to(lock)), held_(PyObject_CallMethodNoArgs(lock, names.acquire)) {}
  ~Locked() {
    if (!held_) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Ref released(PyObject_CallMethodNoArgs(lock_.get(), names.release));
    PyErr_Restore(type, value, traceback);
  }
  explicit operator bool() const { return bool(held_); }

 private:
  Ref lock_, held_;
};

// Replaces what a list has from this position on.
inline bool set_rest(PyObject* list, Py_ssize_t position, PyObject* item) {
  if (PyList_GET_SIZE(list) == position) return PyList_Append(list, item) == 0;
  Ref items(PyList_New(1));
  if (!items) return false;
  PyList_SET_ITEM(items.get(), 0, Ref::to(item).release());
  return PyList_SetSlice(list, position, PY_SSIZE_T_MAX, items.get()) == 0;
}

class Step {
 public:
  Step(PyObject* recorder, const Program& program, const Call& call)
      : recorder_(recorder), program_(program), call_(call), window_(Ref::to(slot(recorder, recording.window))) {}

  Outcome record(Results& results) {
    if (!begin() || !add_operands() || !add_offsets() || !add_numbers()) return Outcome::UNUSUAL;
    return add_results(results) == Outcome::DONE && advance() ? Outcome::DONE : Outcome::RAISED;
  }

 private:
  PyObject* of_window(Py_ssize_t offset) const { return slot(window_.get(), offset); }
  long of_node(Py_ssize_t offset) const { return PyLong_AsLong(slot(node_.get(), offset)); }

  // Whether the open window may take the call without a look at the policy.
  bool begin() {
    PyObject* node = of_window(recording.of_window.node);
    if (node == Py_None) return false;
    node_ = Ref::to(node);
    bool may_repeat = of_window(recording.of_window.leader) == program_.object();
    if (may_repeat && of_node(recording.of_node.calls) >= recording.least_loop) return false;
    return PyList_GET_SIZE(of_window(recording.of_window.inputs)) <= of_node(recording.of_node.inputs);
  }

  bool add_operands() {
    step_.push_back(Ref::to(program_.object()));
    for (const Ref& buffer : call_.buffers) {
      PyObject* array = slot(buffer.get(), engine.array);
      if (array == nullptr) return false;
      if (PyLong_CheckExact(array)) {  // pending: the index of its value
        step_.push_back(Ref::to(array));
        continue;
      }
      Ref identity(PyLong_FromVoidPtr(array));
      PyObject* known = PyDict_GetItemWithError(of_window(recording.of_window.indices), identity.get());
      Ref index = Ref::to(known);
      if (!index) index = Ref(PyObject_CallMethodOneArg(window_.get(), names.add_input, array));
      if (!index || index.get() == Py_None) return false;
      step_.push_back(std::move(index));
    }
    return true;
  }

  bool add_offsets() {
    if (!program_.takes_starts()) return true;
    Ref offsets = program_.offsets(call_);
    if (!offsets || !program_.knows_offsets(offsets.get())) return false;
    PyObject* recorded = of_window(recording.of_window.offsets);
    if (!set_rest(recorded, of_node(recording.of_node.views), offsets.get())) return false;
    if (program_.offsets_seen() <= recording.most_constant) step_.push_back(std::move(offsets));
    return true;
  }

  bool add_numbers() {
    if (call_.numbers.empty()) return true;
    if (!program_.accepts_numbers(call_)) return false;
    Py_ssize_t position = of_node(recording.of_node.numbers);
    for (const Ref& number : call_.numbers) {
      Ref kinded(PyTuple_Pack(2, PyFloat_CheckExact(number.get()) ? names.f : names.i, number.get()));
      if (!kinded || !set_rest(of_window(recording.of_window.numbers), position++, kinded.get())) return false;
    }
    return true;
  }

  Outcome add_results(Results& results) {
    long position = of_node(recording.of_node.results);
    PyObject* buffers = of_window(recording.of_window.buffers);
    return program_.make(results, [&](const Leaf& leaf) -> Ref {
      Ref index(PyLong_FromLong(position));
      Ref buffer = index ? new_buffer(leaf, index.get(), /*pending=*/true) : Ref();
      return buffer && set_rest(buffers, position++, buffer.get()) ? std::move(buffer) : Ref();
    });
  }

  bool advance() {
    Ref step(PyTuple_New(step_.size()));
    if (!step) return false;
    for (size_t i = 0; i < step_.size(); ++i) PyTuple_SET_ITEM(step.get(), i, step_[i].release());
    PyObject* known = PyDict_GetItemWithError(slot(node_.get(), recording.of_node.next), step.get());
    Ref following = Ref::to(known);
    if (!following && !PyErr_Occurred())
      following = Ref(PyObject_CallMethodObjArgs(recorder_, names.extended, node_.get(), step.get(), nullptr));
    if (!following) return false;
    Ref before(std::exchange(slot(window_.get(), recording.of_window.node), Ref(following).release()));
    int is_full = PyObject_RichCompareBool(
        slot(following.get(), recording.of_node.calls), slot(recorder_, recording.most_calls), Py_GE);
    if (is_full < 0) return false;
    if (is_full == 0 && PyLong_AsLongLong(slot(following.get(), recording.of_node.nbytes)) <= recording.most_bytes)
      return true;
    return bool(Ref(PyObject_CallMethodOneArg(recorder_, names.flush_full, window_.get())));
  }

  PyObject* recorder_;
  const Program& program_;
  const Call& call_;
  Ref window_, node_;
  std::vector<Ref> step_;
};

// Records a call.
inline Outcome record(PyObject* recorder, const Program& program, const Call& call, Results& results) {
  if (Py_TYPE(recorder) != recording.recorder || !program.is_deferrable()) return Outcome::UNUSUAL;
  Ref own = Ref::to(recorder);
  Locked locked(slot(recorder, recording.lock));
  if (!locked) return Outcome::RAISED;  // Ctrl-C while it waited
  return Step(recorder, program, call).record(results);
}
