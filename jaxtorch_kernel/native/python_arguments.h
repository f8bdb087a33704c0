// Arguments of a call that are Python objects. Each function is false for an argument that only the general path takes.
#pragma once

#include "key.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/MemoryFormat.h>

inline bool add_number(Call& call, PyObject* argument) {
  if (!PyFloat_CheckExact(argument) && !PyLong_CheckExact(argument)) return false;
  return call.add_number(Ref::to(argument));
}

inline bool add(Call& call, Kind kind, PyObject* argument);

// Adds each item of a list or tuple.
inline bool add_items(Call& call, Kind kind, PyObject* argument) {
  if (!PyTuple_Check(argument) && !PyList_CheckExact(argument)) return false;
  call.add_list(PySequence_Fast_GET_SIZE(argument));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(argument); ++i) {
    if (!add(call, kind, PySequence_Fast_GET_ITEM(argument, i))) return false;
  }
  return true;
}

inline bool add_static(Call& call, PyObject* argument) {
  if (PyBool_Check(argument)) return call.add_static(argument == Py_True);
  if (PyFloat_CheckExact(argument)) return call.add_static(PyFloat_AS_DOUBLE(argument));
  if (PyLong_CheckExact(argument)) {
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(argument, &overflow);
    return overflow == 0 && call.add_static(int64_t(value));
  }
  if (PyUnicode_CheckExact(argument)) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(argument, &length);
    return text != nullptr && call.add_text({text, size_t(length)});
  }
  if (THPDtype_Check(argument)) return call.add_dtype(reinterpret_cast<THPDtype*>(argument)->scalar_type);
  if (THPMemoryFormat_Check(argument))
    return call.add_memory_format(reinterpret_cast<THPMemoryFormat*>(argument)->memory_format);
  return add_items(call, STATIC, argument);
}

// As `call.kind_by_value`.
inline Kind kind_by_value(PyObject* argument) {
  if (THPVariable_Check(argument)) return OF_TENSOR;
  if (PyFloat_CheckExact(argument)) return OF_NUMBER;
  bool has_tensors = PyList_CheckExact(argument) && PyList_GET_SIZE(argument) > 0 &&
                     THPVariable_Check(PyList_GET_ITEM(argument, 0));
  return has_tensors ? OF_TENSORS : STATIC;
}

inline bool add(Call& call, Kind kind, PyObject* argument) {
  if (argument == Py_None) return call.add_none();
  switch (kind) {
    case OF_TENSOR:
      if (THPVariable_Check(argument)) return call.add_tensor(THPVariable_Unpack(argument));
      return add_number(call, argument);  // torch passes it unchanged
    case OF_NUMBER: return add_number(call, argument);
    case OF_TENSORS: return add_items(call, OF_TENSOR, argument);
    case OF_NUMBERS: return add_items(call, OF_NUMBER, argument);
    case FLAG: return PyBool_Check(argument) && call.add_number(Ref(PyLong_FromLong(argument == Py_True)));
    case STATIC: return add_static(call, argument);
    default: return false;
  }
}
