// What a call depends on, as a list of words: it stands for the key that `dispatch/call.py` makes.
#pragma once

#include "tensors.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

using Word = uint64_t;
using Key = std::vector<Word>;

struct Hash {
  size_t operator()(const Key& key) const {
    Word hash = 14695981039346656037ull;
    for (Word word : key) {
      hash = (hash ^ word) * 1099511628211ull;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// Each argument begins with one of these, so that no two lists of arguments have the same words.
enum Tag : Word { NONE = 1, TENSOR, INTEGER_OPERAND, FLOAT_OPERAND, BOOL, INTEGER, FLOAT, TEXT, LIST };

// The kinds of arguments, as in `dispatch/schema.py`.
enum Kind : char { OF_TENSOR = 0, OF_NUMBER = 1, OF_TENSORS = 2, STATIC = 5 };

// A call, taken apart.
struct Call {
  Key key;
  std::vector<const at::Tensor*> tensors;  // they belong to the arguments
  std::vector<Ref> buffers;
  std::vector<PyObject*> numbers;  // they belong to the arguments

  void add_geometry(const at::Tensor& tensor) {
    key.push_back(TENSOR | Word(tensor.dim()) << 8 | Word(tensor.scalar_type()) << 32);
    for (int64_t n : tensor.sizes()) key.push_back(n);
    for (int64_t n : tensor.strides()) key.push_back(n);
  }

  bool add_tensor(PyObject* argument) {
    const at::Tensor& tensor = THPVariable_Unpack(argument);
    if (!tensor.defined() || tensor.is_conj() || tensor.is_neg()) return false;
    if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
    Ref buffer = buffer_of(tensor);
    if (!buffer) return false;
    add_geometry(tensor);
    key.push_back(reinterpret_cast<Word>(slot(buffer.get(), engine.spec)));
    tensors.push_back(&tensor);
    buffers.push_back(std::move(buffer));
    return true;
  }

  bool add_number(PyObject* argument) {
    if (PyFloat_CheckExact(argument)) {
      key.push_back(FLOAT_OPERAND);
    } else if (PyLong_CheckExact(argument)) {
      key.push_back(INTEGER_OPERAND);
    } else {
      return false;
    }
    numbers.push_back(argument);
    return true;
  }

  // A value that is part of the program.
  bool add_static(PyObject* argument) {
    if (argument == Py_None) {
      key.push_back(NONE);
    } else if (PyBool_Check(argument)) {
      key.push_back(BOOL | Word(argument == Py_True) << 8);
    } else if (PyLong_CheckExact(argument)) {
      int overflow = 0;
      long long value = PyLong_AsLongLongAndOverflow(argument, &overflow);
      if (overflow != 0) return false;
      key.push_back(INTEGER);
      key.push_back(Word(value));
    } else if (PyFloat_CheckExact(argument)) {
      double value = PyFloat_AS_DOUBLE(argument);
      Word bits;
      std::memcpy(&bits, &value, sizeof bits);
      key.push_back(FLOAT);
      key.push_back(bits);
    } else if (PyUnicode_CheckExact(argument)) {
      return add_text(argument);
    } else if (PyTuple_Check(argument) || PyList_CheckExact(argument)) {
      key.push_back(LIST | Word(PySequence_Fast_GET_SIZE(argument)) << 8);
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(argument); ++i) {
        if (!add_static(PySequence_Fast_GET_ITEM(argument, i))) return false;
      }
    } else {
      return false;
    }
    return true;
  }

  bool add_text(PyObject* argument) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(argument, &length);
    if (text == nullptr) {
      PyErr_Clear();
      return false;
    }
    key.push_back(TEXT | Word(length) << 8);
    for (Py_ssize_t i = 0; i < length; i += sizeof(Word)) {
      Word word = 0;
      std::memcpy(&word, text + i, std::min<Py_ssize_t>(sizeof word, length - i));
      key.push_back(word);
    }
    return true;
  }

  bool add(Kind kind, PyObject* argument) {
    if (argument == Py_None) {
      key.push_back(NONE);
      return true;
    }
    if (kind == STATIC) return add_static(argument);
    if (kind == OF_NUMBER) return add_number(argument);
    if (kind == OF_TENSOR) return THPVariable_Check(argument) ? add_tensor(argument) : add_number(argument);
    if (kind == OF_TENSORS && (PyTuple_Check(argument) || PyList_CheckExact(argument))) {
      key.push_back(LIST | Word(PySequence_Fast_GET_SIZE(argument)) << 8);
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(argument); ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(argument, i);
        if (item == Py_None) {
          key.push_back(NONE);
        } else if (!THPVariable_Check(item) || !add_tensor(item)) {
          return false;
        }
      }
      return true;
    }
    return false;
  }
};

// A Call from this thread's stock, so that describing one allocates no memory. A kernel may run within another's call.
class Borrowed {
 public:
  Borrowed() {
    if (depth() == stock().size()) stock().push_back(std::make_unique<Call>());
    call_ = stock()[depth()++].get();
  }
  ~Borrowed() {
    call_->key.clear();
    call_->tensors.clear();
    call_->buffers.clear();
    call_->numbers.clear();
    --depth();
  }
  Borrowed(const Borrowed&) = delete;
  Call& operator*() const { return *call_; }
  Call* operator->() const { return call_; }

 private:
  static std::vector<std::unique_ptr<Call>>& stock() {
    static thread_local std::vector<std::unique_ptr<Call>> calls;
    return calls;
  }
  static size_t& depth() {
    static thread_local size_t count = 0;
    return count;
  }

  Call* call_;
};

// Adds the state of torch and of the engine that eager calls depend on; false while code is traced or profiled, or in a
// scope with options of its own.
inline bool add_state(Key& key) {
  if (!is_zero(PyDict_GetItemWithError(engine.tracing, names.depth))) return false;
  Ref open(PyObject_GetAttr(engine.config, names.open));
  Ref base(PyObject_GetAttr(engine.config, names.base));
  if (!open || !base || !is_zero(open.get())) return false;
  key.push_back(reinterpret_cast<Word>(base.get()));  // options are interned, and never freed
  key.push_back(
      Word(c10::typeMetaToScalarType(c10::get_default_dtype())) |
      Word(at::globalContext().float32MatmulPrecision()) << 8);
  return true;
}
