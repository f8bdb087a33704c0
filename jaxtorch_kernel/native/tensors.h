// Tensors of the device: their buffers, and new tensors over results.
#pragma once

#include "python.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <vector>

// The Buffer of a tensor, or nothing if it is not a tensor of the device that has one.
inline Ref buffer_of(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone() || !tensor.has_storage()) return {};
  auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  PyObject* wrapper = storage->pyobj_slot()->load_pyobj();
  if (wrapper == nullptr) return {};  // torch's C++ made the storage, and nothing has attached a buffer
  Ref buffer(PyObject_GetAttr(wrapper, names.buffer));
  if (!buffer) {
    PyErr_Clear();
    return {};
  }
  if (!PyObject_TypeCheck(buffer.get(), engine.buffer)) return {};
  return buffer;
}

// The user's line that is calling: (maker, code, instruction), as `programs.site.origin`.
inline Ref origin(PyObject* maker) {
  Ref frame = Ref::to(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* running = reinterpret_cast<PyFrameObject*>(frame.get());
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(running)));
    PyObject* file = reinterpret_cast<PyCodeObject*>(code.get())->co_filename;
    Ref is_user = Ref::to(PyDict_GetItemWithError(engine.user_files, file));
    if (!is_user) {
      if (PyErr_Occurred()) return {};
      is_user = Ref(PyObject_CallOneArg(engine.is_user_file, file));
      if (!is_user) return {};
    }
    if (is_user.get() == Py_True) {
      Ref instruction(PyLong_FromLong(PyFrame_GetLasti(running)));
      return Ref(PyTuple_Pack(3, maker, code.get(), instruction.get()));
    }
    frame = Ref(reinterpret_cast<PyObject*>(PyFrame_GetBack(running)));
  }
  return Ref::to(Py_None);
}

// A result of a program: a new tensor over one output.
struct Leaf {
  bool is_none = false;
  std::vector<int64_t> size, stride;
  at::ScalarType dtype = at::ScalarType::Undefined;
  Ref spec, maker;
  Ref buffer_class, pending_class;
  bool plain = true;  // the class is Buffer itself, whose instances need no call of `__init__`
};

// A Buffer with this array; a pending one with the index of a deferred value in its place.
inline Ref new_buffer(const Leaf& leaf, PyObject* array, bool pending = false) {
  Ref made_by = origin(leaf.maker.get());
  if (!made_by) return {};
  if (!leaf.plain) {
    PyObject* arguments[] = {array, leaf.spec.get(), made_by.get()};
    Ref counted(PyObject_Vectorcall(leaf.buffer_class.get(), arguments, 3, nullptr));
    if (counted && pending && PyObject_SetAttr(counted.get(), names.cls, leaf.pending_class.get()) < 0) return {};
    return counted;
  }
  auto* type = reinterpret_cast<PyTypeObject*>((pending ? leaf.pending_class : leaf.buffer_class).get());
  Ref buffer(type->tp_alloc(type, 0));
  if (!buffer) return {};
  slot(buffer.get(), engine.array) = Ref::to(array).release();
  slot(buffer.get(), engine.spec) = Ref(leaf.spec).release();
  slot(buffer.get(), engine.origin) = made_by.release();
  return buffer;
}

// A tensor over a new Storage with this Buffer, as `base.torch_private.create_empty_tensor` makes it. Undefined if that
// raised an exception.
inline at::Tensor new_tensor(const Leaf& leaf, PyObject* buffer) {
  c10::DataPtr nowhere(nullptr, c10::Device(c10::kPrivateUse1, 0));
  c10::Storage storage(
      c10::Storage::use_byte_size_t{}, 0, std::move(nowhere), c10::GetAllocator(c10::kMeta), /*resizable=*/true);
  Ref wrapper(THPStorage_Wrap(storage));
  if (!wrapper || PyObject_SetAttr(wrapper.get(), names.buffer, buffer) < 0) return {};
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(leaf.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(leaf.size, leaf.stride);
  return tensor;
}
