// Arguments of a call that come from torch's dispatcher. Each function is false for an argument that only the general
// path takes.
#pragma once

#include "key.h"

#include <ATen/core/ivalue.h>

inline bool add_number(Call& call, const c10::IValue& argument) {
  if (argument.isDouble()) return call.add_number(Ref(PyFloat_FromDouble(argument.toDouble())));
  if (argument.isInt()) return call.add_number(Ref(PyLong_FromLongLong(argument.toInt())));
  return false;
}

// A tensor, or the number that torch wrapped as a tensor.
inline bool add_tensor(Call& call, const at::Tensor& tensor) {
  if (!tensor.defined()) return call.add_none();
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) return call.add_tensor(tensor);
  switch (tensor.scalar_type()) {
    case at::kDouble: return call.add_number(Ref(PyFloat_FromDouble(*tensor.const_data_ptr<double>())));
    case at::kLong: return call.add_number(Ref(PyLong_FromLongLong(*tensor.const_data_ptr<int64_t>())));
    default: return false;
  }
}

inline bool add_static(Call& call, const c10::IValue& argument) {
  if (argument.isNone()) return call.add_none();
  if (argument.isBool()) return call.add_static(argument.toBool());
  if (argument.isInt()) return call.add_static(argument.toInt());
  if (argument.isDouble()) return call.add_static(argument.toDouble());
  if (argument.isString()) return call.add_text(argument.toStringView());
  if (!argument.isList() || argument.isTensorList()) return false;
  auto items = argument.toListRef();
  call.add_list(items.size());
  for (const c10::IValue& item : items) {
    if (!add_static(call, item)) return false;
  }
  return true;
}

inline bool add(Call& call, Kind kind, const c10::IValue& argument) {
  if (argument.isNone()) return call.add_none();
  switch (kind) {
    case OF_TENSOR: return argument.isTensor() && add_tensor(call, argument.toTensor());
    case OF_NUMBER: return add_number(call, argument);
    case STATIC: return add_static(call, argument);
    case OF_TENSORS: break;
    default: return false;
  }
  if (!argument.isList()) return false;
  auto items = argument.toListRef();
  call.add_list(items.size());
  for (const c10::IValue& item : items) {
    bool is_added = item.isNone() ? call.add_none() : item.isTensor() && call.add_tensor(item.toTensor());
    if (!is_added) return false;
  }
  return true;
}
