// What runs the calls of one key: a program, or several of them that divide long lists (`dispatch/parts.py`).
#pragma once

#include "recording.h"

// The recorder while execution is deferred, or None.
inline PyObject* current_recorder() { return PyDict_GetItemWithError(engine.deferring, names.recorder); }

class Known {
 public:
  // From the tuple that `dispatch/native_calls.py` describes a call with; nothing if it raised an exception.
  static std::shared_ptr<Known> from(PyObject* description) {
    auto made = std::make_shared<Known>();
    PyObject *returned, *parts;
    int structure;
    if (!PyArg_ParseTuple(description, "iO!O!", &structure, &PyTuple_Type, &returned, &PyTuple_Type, &parts))
      return nullptr;
    made->structure_ = Structure(structure);
    if (!read(returned, made->returned_)) return nullptr;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i) {
      PyObject *program, *tensors, *numbers, *positions;
      if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parts, i), "OOOO", &program, &tensors, &numbers, &positions))
        return nullptr;
      Part part{Program::from(program)};
      if (part.program == nullptr) return nullptr;
      made->is_divided_ = tensors != Py_None;
      bool is_read = !made->is_divided_ || (read(tensors, part.tensors) && read(numbers, part.numbers) &&
                                            read(positions, part.positions));
      if (!is_read) return nullptr;
      made->count_ += part.positions.size();
      made->parts_.push_back(std::move(part));
    }
    return made;
  }

  // Runs the call, or records it if execution is deferred.
  Outcome run(const Call& call, Results& results) const {
    PyObject* recorder = current_recorder();
    if (recorder == nullptr) return Outcome::UNUSUAL;
    Outcome outcome = is_divided_ ? run_parts(recorder, call, results) : run_whole(recorder, call, results);
    if (outcome == Outcome::DONE) {
      for (Py_ssize_t i : returned_) results.push_back(*call.tensors[i]);
    }
    return outcome;
  }

  // What the operator returns to Python.
  Ref to_python(Results results) const {
    auto wrapped = [](at::Tensor& tensor) {
      return tensor.defined() ? Ref(THPVariable_Wrap(std::move(tensor))) : Ref::to(Py_None);
    };
    if (structure_ == Structure::NOTHING) return Ref::to(Py_None);
    if (structure_ == Structure::SINGLE) return wrapped(results[0]);
    bool is_tuple = structure_ == Structure::TUPLE;
    Ref all(is_tuple ? PyTuple_New(results.size()) : PyList_New(results.size()));
    for (size_t i = 0; all && i < results.size(); ++i) {
      Ref item = wrapped(results[i]);
      if (!item) return {};
      is_tuple ? PyTuple_SET_ITEM(all.get(), i, item.release()) : PyList_SET_ITEM(all.get(), i, item.release());
    }
    return all;
  }

  Structure structure() const { return structure_; }

  int traverse(visitproc visit, void* arg) const {
    for (const Part& part : parts_) {
      if (int stopped = part.program->traverse(visit, arg)) return stopped;
    }
    return 0;
  }

 private:
  using Indices = std::vector<Py_ssize_t>;

  struct Part {
    std::shared_ptr<Program> program;
    Indices tensors, numbers, positions;  // of the call

    Call of(const Call& call) const {
      Call part;
      for (Py_ssize_t i : tensors) {
        part.tensors.push_back(call.tensors[i]);
        part.buffers.push_back(call.buffers[i]);
      }
      for (Py_ssize_t i : numbers) part.numbers.push_back(call.numbers[i]);
      return part;
    }
  };

  static bool read(PyObject* items, Indices& indices) {
    Ref sequence(PySequence_Fast(items, "indices are a list or a tuple"));
    for (Py_ssize_t i = 0; sequence && i < PySequence_Fast_GET_SIZE(sequence.get()); ++i)
      indices.push_back(PyLong_AsSsize_t(PySequence_Fast_GET_ITEM(sequence.get(), i)));
    return !PyErr_Occurred();
  }

  Outcome run_whole(PyObject* recorder, const Call& call, Results& results) const {
    const Program& program = *parts_[0].program;
    return recorder == Py_None ? program.run(call, results) : record(recorder, {{program, call, results}});
  }

  Outcome run_parts(PyObject* recorder, const Call& call, Results& results) const {
    std::vector<Call> calls;
    std::vector<Results> made(parts_.size());
    std::vector<Recorded> recorded;
    calls.reserve(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      calls.push_back(parts_[i].of(call));
      recorded.push_back({*parts_[i].program, calls[i], made[i]});
    }
    Outcome outcome = recorder == Py_None ? run_all(recorded) : record(recorder, recorded);
    if (outcome != Outcome::DONE || structure_ == Structure::NOTHING) return outcome;
    results.resize(count_);
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (size_t n = 0; n < made[i].size(); ++n) results[parts_[i].positions[n]] = std::move(made[i][n]);
    }
    return outcome;
  }

  // A program that writes is never quick, so none has run if one is unusual, or they may run again.
  static Outcome run_all(const std::vector<Recorded>& calls) {
    for (const Recorded& one : calls) {
      Outcome outcome = one.program.run(one.call, one.results);
      if (outcome != Outcome::DONE) return outcome;
    }
    return Outcome::DONE;
  }

  Structure structure_ = Structure::SINGLE;
  Indices returned_;  // of the tensors that the call wrote, those that it returns
  std::vector<Part> parts_;
  bool is_divided_ = false;
  size_t count_ = 0;
};
