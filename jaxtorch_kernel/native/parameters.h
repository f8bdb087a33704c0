// What an optimizer's step asks of each parameter: `device/optimizers.py`.
#pragma once

#include "python.h"

#include <torch/csrc/autograd/python_variable.h>

// Whether a tensor has torch's own class. One that Python has not seen does.
inline bool has_plain_class(const at::Tensor& tensor) {
  PyObject* object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return object == nullptr || THPVariable_CheckExact(object);
}

inline bool is_plain(const at::Tensor& parameter) {
  if (!parameter.is_privateuseone() || !at::isFloatingType(parameter.scalar_type())) return false;
  const at::Tensor& grad = parameter.unsafeGetTensorImpl()->grad();
  if (!grad.defined()) return true;
  return has_plain_class(grad) && grad.scalar_type() == parameter.scalar_type() && !grad.requires_grad();
}

// `are_plain(parameters)`: as `all(map(_is_plain, parameters))`.
inline PyObject* are_plain(PyObject*, PyObject* parameters) {
  Ref items(PySequence_Fast(parameters, "not a sequence of parameters"));
  if (!items) return nullptr;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), i);
    if (!THPVariable_CheckExact(item) || !is_plain(THPVariable_Unpack(item))) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}
