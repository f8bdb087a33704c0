// A program of the device, as a kernel calls it.
#pragma once

#include "key.h"

#include <torch/csrc/Dtype.h>

// New tensors; an undefined one stands for None.
using Results = std::vector<at::Tensor>;

// What became of a call. UNUSUAL: nothing has happened, and the general path has to take the call.
enum class Outcome { DONE, UNUSUAL, RAISED };

// How the results of a call are returned; the order is that of `dispatch/native_calls.py`.
enum class Structure : char { NOTHING, SINGLE, TUPLE, LIST };

// A buffer that a program writes: the index of its tensor, and its Spec afterwards.
struct Target {
  Py_ssize_t tensor;
  Ref spec;
};

// The range of a number, as the nearest doubles.
struct Bound {
  Py_ssize_t number;
  double low, high;
};

class Program {
 public:
  // From the tuple that `dispatch/native_calls.py` describes a program with; nothing if it raised an exception.
  static std::shared_ptr<Program> from(PyObject* description) {
    auto made = std::make_shared<Program>();
    PyObject *program, *executable, *starts, *numbers, *views, *leaves, *bounds, *check, *targets, *maker;
    int recordable;
    if (!PyArg_ParseTuple(
            description, "OOO!O!O!O!OpO!O!O", &program, &executable, &PyTuple_Type, &views, &PyDict_Type, &starts,
            &PyDict_Type, &numbers, &PyTuple_Type, &bounds, &check, &recordable, &PyTuple_Type, &leaves, &PyTuple_Type,
            &targets, &maker))
      return nullptr;
    made->program_ = Ref::to(program);
    made->executable_ = Ref::to(executable);
    made->starts_ = Ref::to(starts);
    made->numbers_ = Ref::to(numbers);
    made->check_ = Ref::to(check);
    made->maker_ = Ref::to(maker);
    made->recordable_ = recordable != 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(views); ++i)
      made->views_.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(views, i)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bounds); ++i) {
      Bound bound;
      if (!PyArg_ParseTuple(PyTuple_GET_ITEM(bounds, i), "ndd", &bound.number, &bound.low, &bound.high)) return nullptr;
      made->bounds_.push_back(bound);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves); ++i) {
      Leaf leaf;
      if (!read_leaf(PyTuple_GET_ITEM(leaves, i), leaf)) return nullptr;
      made->leaves_.push_back(std::move(leaf));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(targets); ++i) {
      PyObject* spec;
      Target target;
      if (!PyArg_ParseTuple(PyTuple_GET_ITEM(targets, i), "nO", &target.tensor, &spec)) return nullptr;
      target.spec = Ref::to(spec);
      made->targets_.push_back(std::move(target));
    }
    return made;
  }

  Outcome run(const Call& call, Results& results) const {
    // A program that writes is never quick, so none runs here.
    // Owned: while the program runs, another thread may switch the counting of calls on, which replaces it.
    Ref execute = Ref::to(slot(executable_.get(), engine.call));
    if (!execute || execute.get() == Py_None || !is_quick()) return Outcome::UNUSUAL;
    std::vector<Ref> operands;
    operands.reserve(call.buffers.size() + 3);
    for (const Ref& buffer : call.buffers) {
      PyObject* array = slot(buffer.get(), engine.array);
      // Reading a pending buffer runs what was deferred.
      if (array == nullptr || PyLong_CheckExact(array)) return Outcome::UNUSUAL;
      operands.push_back(Ref::to(array));
    }
    if (!add_starts(call, operands) || !add_numbers(call, operands)) return Outcome::UNUSUAL;
    Ref outputs = launch(execute.get(), operands);
    if (!outputs) {
      // The general path repeats the call, and explains the error or waits for the thread that writes. An operator
      // that writes nothing may run twice.
      return PyErr_ExceptionMatches(PyExc_Exception) ? Outcome::UNUSUAL : Outcome::RAISED;
    }
    Ref items(PySequence_Fast(outputs.get(), "a program returned something other than a list"));
    if (!items) return Outcome::RAISED;
    Py_ssize_t next = 0;
    return make(results, [&](const Leaf& leaf) {
      return new_buffer(leaf, PySequence_Fast_GET_ITEM(items.get(), next++));
    });
  }

  // Adds a tensor for each result; `buffer_for` makes its Buffer.
  template <typename BufferFor>
  Outcome make(Results& results, BufferFor buffer_for) const {
    results.reserve(leaves_.size());
    for (const Leaf& leaf : leaves_) {
      if (leaf.is_none) {
        results.emplace_back();
        continue;
      }
      Ref buffer = buffer_for(leaf);
      if (!buffer) return Outcome::RAISED;
      results.push_back(new_tensor(leaf, buffer.get()));
      if (!results.back().defined()) return Outcome::RAISED;
    }
    return Outcome::DONE;
  }

  PyObject* object() const { return program_.get(); }
  bool is_recordable() const { return recordable_; }
  const std::vector<Target>& targets() const { return targets_; }
  PyObject* maker() const { return maker_.get(); }  // of what is in the targets afterwards
  bool takes_starts() const { return !views_.empty(); }
  bool knows_offsets(PyObject* offsets) const { return PyDict_Contains(starts_.get(), offsets) == 1; }
  Py_ssize_t offsets_seen() const { return PyDict_GET_SIZE(starts_.get()); }

  // The storage offsets of the views that take starts.
  Ref offsets(const Call& call) const {
    Ref offsets(PyTuple_New(views_.size()));
    for (size_t i = 0; offsets && i < views_.size(); ++i)
      PyTuple_SET_ITEM(offsets.get(), i, PyLong_FromLongLong(call.tensors[views_[i]]->storage_offset()));
    return offsets;
  }

  // Whether the numbers fit the dtypes that they are cast to. If not, the general path raises torch's error.
  bool accepts_numbers(const Call& call) const {
    if (bounds_.empty() || are_within(call)) return true;
    Ref numbers = numbers_of(call);
    return numbers && Ref(PyObject_CallOneArg(check_.get(), numbers.get()));
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(program_.get());
    Py_VISIT(executable_.get());
    return 0;
  }

 private:
  // Whether all numbers are so clearly within their bounds that `check_` need not look at them.
  bool are_within(const Call& call) const {
    for (const Bound& bound : bounds_) {
      PyObject* number = call.numbers[bound.number].get();
      double value = NAN;
      if (PyFloat_CheckExact(number)) value = PyFloat_AS_DOUBLE(number);
      if (PyLong_CheckExact(number)) value = PyLong_AsDouble(number);
      if (value == -1.0 && PyErr_Occurred()) PyErr_Clear(), value = NAN;  // an integer beyond all doubles
      // Below this a double is the integer itself.
      constexpr double exact = 1LL << 53;
      if (!(bound.low <= value && value <= bound.high && -exact < value && value < exact)) return false;
    }
    return true;
  }

  static bool read_leaf(PyObject* description, Leaf& leaf) {
    leaf.is_none = description == Py_None;
    if (leaf.is_none) return true;
    PyObject *size, *dtype, *stride, *spec, *maker, *cls, *pending;
    if (!PyArg_ParseTuple(
            description, "O!OO!OOOO", &PyTuple_Type, &size, &dtype, &PyTuple_Type, &stride, &spec, &maker, &cls,
            &pending))
      return false;
    leaf.size = integers(size);
    leaf.stride = integers(stride);
    leaf.dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    leaf.spec = Ref::to(spec);
    leaf.maker = Ref::to(maker);
    leaf.buffer_class = Ref::to(cls);
    leaf.pending_class = Ref::to(pending);
    leaf.plain = reinterpret_cast<PyTypeObject*>(cls) == engine.buffer;
    return !PyErr_Occurred();
  }

  static std::vector<int64_t> integers(PyObject* tuple) {
    std::vector<int64_t> values;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
      values.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
    return values;
  }

  // A program becomes quick when it is compiled, and stays so.
  bool is_quick() const {
    if (quick_) return true;
    Ref value(PyObject_GetAttr(program_.get(), names.quick));
    return quick_ = value.get() == Py_True;
  }

  // The starts of the views, if an earlier call had the same.
  bool add_starts(const Call& call, std::vector<Ref>& operands) const {
    if (views_.empty()) return true;
    Ref offsets = this->offsets(call);
    PyObject* starts = offsets ? PyDict_GetItemWithError(starts_.get(), offsets.get()) : nullptr;
    if (starts == nullptr || reinterpret_cast<PyObject*>(Py_TYPE(starts)) == engine.array_type) return false;
    operands.push_back(Ref::to(starts));
    return true;
  }

  // The operands of the call's numbers, if an earlier call had the same.
  bool add_numbers(const Call& call, std::vector<Ref>& operands) const {
    if (call.numbers.empty()) return true;
    Ref numbers = numbers_of(call);
    PyObject* known = numbers ? PyDict_GetItemWithError(numbers_.get(), numbers.get()) : nullptr;
    if (known == nullptr) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(known); ++i)
      operands.push_back(Ref::to(PyTuple_GET_ITEM(known, i)));
    return true;
  }

  static Ref launch(PyObject* execute, const std::vector<Ref>& operands) {
    std::vector<PyObject*> arguments;
    arguments.reserve(operands.size());
    for (const Ref& operand : operands) arguments.push_back(operand.get());
    return Ref(PyObject_Vectorcall(execute, arguments.data(), arguments.size(), nullptr));
  }

  static Ref numbers_of(const Call& call) {
    Ref numbers(PyTuple_New(call.numbers.size()));
    for (size_t i = 0; numbers && i < call.numbers.size(); ++i)
      PyTuple_SET_ITEM(numbers.get(), i, Ref(call.numbers[i]).release());
    return numbers;
  }

  Ref program_, executable_, starts_, numbers_, check_, maker_;
  std::vector<Py_ssize_t> views_;
  std::vector<Bound> bounds_;
  std::vector<Leaf> leaves_;
  std::vector<Target> targets_;
  bool recordable_ = false;
  mutable bool quick_ = false;
};
