// Recording a call instead of running it: `Recorder._recorded` of `deferred/recorder.py`, for a call whose programs are
// known and draw nothing. The window and its tree are the objects of `deferred/`.
#pragma once

#include "program.h"

// The slots of those objects, set by `configure_recording`.
struct Recording {
  PyTypeObject* recorder = nullptr;
  Py_ssize_t lock, window, most_calls;
  struct { Py_ssize_t node, leader, buffers, inputs, indices, numbers, offsets; } of_window;
  struct { Py_ssize_t next, results, inputs, views, numbers, calls, nbytes; } of_node;
  PyObject* pending_classes;  // storage.pending.CLASSES
  PyTypeObject* array = nullptr;  // the type of the arrays that a window takes, once it has taken one
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

// As `Window.add_input`: the index of a new input of a window, or None.
inline Ref add_input(PyObject* window, PyObject* array) {
  if (Py_TYPE(array) != recording.array) {
    Ref index(PyObject_CallMethodOneArg(window, names.add_input, array));
    if (index && index.get() != Py_None) recording.array = Py_TYPE(array);
    return index;
  }
  Ref is_deleted(PyObject_CallMethodNoArgs(array, names.is_deleted));
  if (is_deleted.get() != Py_False) return is_deleted ? Ref::to(Py_None) : Ref();
  PyObject* inputs = slot(window, recording.of_window.inputs);
  Ref index(PyLong_FromSsize_t(~PyList_GET_SIZE(inputs)));
  Ref identity(PyLong_FromVoidPtr(array));
  if (!index || !identity || PyList_Append(inputs, array) < 0) return {};
  if (PyDict_SetItem(slot(window, recording.of_window.indices), identity.get(), index.get()) < 0) return {};
  return index;
}

// A call to record, and the tensors that it returns then.
struct Recorded {
  const Program& program;
  const Call& call;
  Results& results;
};

// One call as a step of the open window. `prepare` finds out whether the window can take it and changes nothing that
// counts: inputs that no step takes are dropped by the next call. `take` records it.
class Step {
 public:
  Step(PyObject* recorder, PyObject* window, const Recorded& recorded)
      : recorder_(recorder), window_(window), program_(recorded.program), call_(recorded.call),
        results_(recorded.results) {}

  bool prepare() { return program_.is_recordable() && add_operands() && add_offsets() && program_.accepts_numbers(call_); }

  // False if that raised an exception.
  bool take() {
    node_ = Ref::to(of_window(recording.of_window.node));
    position_ = of_node(recording.of_node.results);
    return note_offsets() && note_numbers() && add_results() && advance() && write_targets();
  }

 private:
  PyObject* of_window(Py_ssize_t offset) const { return slot(window_, offset); }
  long of_node(Py_ssize_t offset) const { return PyLong_AsLong(slot(node_.get(), offset)); }

  bool add_operands() {
    step_.reserve(call_.buffers.size() + 2);
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
      if (!index) index = add_input(window_, array);
      if (!index || index.get() == Py_None) return false;
      step_.push_back(std::move(index));
    }
    return true;
  }

  bool add_offsets() {
    if (!program_.takes_starts()) return true;
    offsets_ = program_.offsets(call_);
    if (!offsets_ || !program_.knows_offsets(offsets_.get())) return false;
    if (program_.offsets_seen() <= recording.most_constant) step_.push_back(offsets_);
    return true;
  }

  bool note_offsets() {
    return !offsets_ || set_rest(of_window(recording.of_window.offsets), of_node(recording.of_node.views), offsets_.get());
  }

  bool note_numbers() {
    Py_ssize_t position = of_node(recording.of_node.numbers);
    for (const Ref& number : call_.numbers) {
      Ref kinded(PyTuple_Pack(2, PyFloat_CheckExact(number.get()) ? names.f : names.i, number.get()));
      if (!kinded || !set_rest(of_window(recording.of_window.numbers), position++, kinded.get())) return false;
    }
    return true;
  }

  // Notes a buffer that has the next result.
  bool add_buffer(PyObject* buffer) { return set_rest(of_window(recording.of_window.buffers), position_++, buffer); }

  bool add_results() {
    Outcome made = program_.make(results_, [&](const Leaf& leaf) -> Ref {
      Ref index(PyLong_FromLong(position_));
      Ref buffer = index ? new_buffer(leaf, index.get(), /*pending=*/true) : Ref();
      return buffer && add_buffer(buffer.get()) ? std::move(buffer) : Ref();
    });
    if (made != Outcome::DONE) return false;
    for (const Target& target : program_.targets()) {
      indices_.emplace_back(PyLong_FromLong(position_));
      if (!indices_.back() || !add_buffer(call_.buffers[target.tensor].get())) return false;
    }
    if (!indices_.empty()) made_by_ = origin(program_.maker());
    return indices_.empty() || made_by_;
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
    Ref before(std::exchange(slot(window_, recording.of_window.node), following.release()));
    return true;
  }

  // Makes the written buffers pending, as `storage.pending.suspend`, with what is written as their next value.
  bool write_targets() {
    PyObject* buffers = of_window(recording.of_window.buffers);
    for (size_t i = 0; i < indices_.size(); ++i) {
      const Target& target = program_.targets()[i];
      PyObject* buffer = call_.buffers[target.tensor].get();
      Ref before(std::exchange(slot(buffer, engine.array), indices_[i].release()));
      Ref spec(std::exchange(slot(buffer, engine.spec), Ref(target.spec).release()));
      Ref maker(std::exchange(slot(buffer, engine.origin), Ref(made_by_).release()));
      if (PyLong_CheckExact(before.get())) {  // it was pending: that value has no buffer any more
        if (PyList_SetItem(buffers, PyLong_AsSsize_t(before.get()), Ref::to(Py_None).release()) < 0) return false;
        continue;
      }
      PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(buffer));
      Ref pending(PyObject_GetItem(recording.pending_classes, type));
      if (!pending || PyObject_SetAttr(buffer, names.cls, pending.get()) < 0) return false;
    }
    return true;
  }

  PyObject* recorder_;
  PyObject* window_;
  const Program& program_;
  const Call& call_;
  Results& results_;
  Ref node_, offsets_, made_by_;
  long position_ = 0;
  std::vector<Ref> step_, indices_;
};

// Whether the open window takes a call of these programs without a look at the policy.
inline bool is_open(PyObject* window, const std::vector<Recorded>& calls) {
  PyObject* node = slot(window, recording.of_window.node);
  long recorded = PyLong_AsLong(slot(node, recording.of_node.calls));
  PyObject* leader = slot(window, recording.of_window.leader);
  bool may_repeat = leader != Py_None && recorded + long(calls.size()) > recording.least_loop;
  for (const Recorded& call : calls) {
    if (may_repeat && leader == call.program.object()) return false;
  }
  Py_ssize_t inputs = PyList_GET_SIZE(slot(window, recording.of_window.inputs));
  return inputs <= PyLong_AsLong(slot(node, recording.of_node.inputs));
}

// Runs the window if it is full.
inline Outcome end_if_full(PyObject* recorder, PyObject* window) {
  PyObject* node = slot(window, recording.of_window.node);
  int is_full = PyObject_RichCompareBool(
      slot(node, recording.of_node.calls), slot(recorder, recording.most_calls), Py_GE);
  if (is_full < 0) return Outcome::RAISED;
  if (is_full == 0 && PyLong_AsLongLong(slot(node, recording.of_node.nbytes)) <= recording.most_bytes)
    return Outcome::DONE;
  return Ref(PyObject_CallMethodOneArg(recorder, names.flush_full, window)) ? Outcome::DONE : Outcome::RAISED;
}

// Records calls that are one call of an operator: all of them, or none if one is unusual.
inline Outcome record(PyObject* recorder, const std::vector<Recorded>& calls) {
  if (Py_TYPE(recorder) != recording.recorder) return Outcome::UNUSUAL;
  Ref own = Ref::to(recorder);
  Locked locked(slot(recorder, recording.lock));
  if (!locked) return Outcome::RAISED;  // Ctrl-C while it waited
  Ref window = Ref::to(slot(recorder, recording.window));
  if (slot(window.get(), recording.of_window.node) == Py_None) {
    window = Ref(PyObject_CallMethodOneArg(recorder, names.opened, calls[0].program.object()));
    if (!window) return Outcome::RAISED;
    if (window.get() == Py_None) return Outcome::UNUSUAL;
  }
  if (!is_open(window.get(), calls)) return Outcome::UNUSUAL;
  std::vector<Step> steps;
  steps.reserve(calls.size());
  for (const Recorded& call : calls) {
    steps.emplace_back(recorder, window.get(), call);
    if (!steps.back().prepare()) return Outcome::UNUSUAL;
  }
  for (Step& step : steps) {
    if (!step.take()) return Outcome::RAISED;
  }
  return end_if_full(recorder, window.get());
}
