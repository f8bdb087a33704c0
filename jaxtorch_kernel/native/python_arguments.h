// Arguments of a call that are Python objects. Each function is false for an argument that only the general path takes.
#pragma once

#include "key.h"

#include <torch/csrc/Dtype.h>

inline bool add_number(Call& call, PyObject* argument) {
  if (!PyFloat_CheckExact(argument) && !PyLong_CheckExact(argument)) return false;
  return call.add_number(Ref::to(argument));
}

inline bool add_static(Call& call, PyObject* argument) {
  if (argument == Py_None) return call.add_none();
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
  if (THPDtype_Check(argument)) return call.add_static(int64_t(reinterpret_cast<THPDtype*>(argument)->scalar_type));
  if (!PyTuple_Check(argument) && !PyList_CheckExact(argument)) return false;
  call.add_list(PySequence_Fast_GET_SIZE(argument));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(argument); ++i) {
    if (!add_static(call, PySequence_Fast_GET_ITEM(argument, i))) return false;
  }
  return true;
}

inline bool add_tensors(Call& call, PyObject* argument) {
  if (!PyTuple_Check(argument) && !PyList_CheckExact(argument)) return false;
  call.add_list(PySequence_Fast_GET_SIZE(argument));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(argument); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(argument, i);
    bool is_tensor = THPVariable_Check(item);
    if (!(item == Py_None ? call.add_none() : is_tensor && call.add_tensor(THPVariable_Unpack(item)))) return false;
  }
  return true;
}

inline bool add(Call& call, Kind kind, PyObject* argument) {
  if (argument == Py_None) return call.add_none();
  switch (kind) {
    case OF_TENSOR:
      if (THPVariable_Check(argument)) return call.add_tensor(THPVariable_Unpack(argument));
      return add_number(call, argument);  // torch passes it unchanged
    case OF_NUMBER: return add_number(call, argument);
    case OF_TENSORS: return add_tensors(call, argument);
    case STATIC: return add_static(call, argument);
    default: return false;
  }
}
