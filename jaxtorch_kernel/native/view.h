// The type of view kernels: a table of known geometries before the general path, which is written in Python.
#pragma once

#include "key.h"

#include <memory>
#include <unordered_map>

constexpr size_t MOST_GEOMETRIES = 4096;  // that one kernel knows

// Where the views of a call are, relative to its tensor.
struct Views {
  struct Geometry {
    std::vector<int64_t> size, stride;
    int64_t offset;
  };
  std::vector<Geometry> geometries;
  bool is_list = false;
};

class ViewKernel {
 public:
  explicit ViewKernel(PyObject* general) : general_(Ref::to(general)) {}

  Ref call(PyObject* args, PyObject* kwargs) {
    Borrowed call;
    const at::Tensor* source = nullptr;
    bool is_described = (kwargs == nullptr || PyDict_GET_SIZE(kwargs) == 0) && describe(args, *call, source);
    if (is_described) {
      auto found = known_.find(call->key);
      if (found != known_.end()) {
        std::shared_ptr<Views> views = found->second;  // another thread may forget it
        return aliases(*source, *views);
      }
    }
    PyErr_Clear();
    Ref result(PyObject_Call(general_.get(), args, kwargs));
    if (result && is_described) learn(call->key, *source, result.get());
    return result;
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(general_.get());
    return 0;
  }

  size_t known() const { return known_.size(); }
  Ref general() const { return general_; }

  void clear() { general_ = Ref(); }

 private:
  // False for a call that the general path must take.
  static bool describe(PyObject* args, Call& call, const at::Tensor*& source) {
    if (PyTuple_GET_SIZE(args) == 0 || !THPVariable_Check(PyTuple_GET_ITEM(args, 0))) return false;
    if (!is_zero(PyDict_GetItemWithError(engine.tracing, names.depth))) return false;
    const at::Tensor& tensor = THPVariable_Unpack(PyTuple_GET_ITEM(args, 0));
    if (!tensor.defined() || !tensor.is_privateuseone() || !tensor.has_storage()) return false;
    if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
    // Below the dispatcher, an alias is an inference tensor in inference mode only, whereas a view is of its base's kind.
    if (tensor.is_inference() != c10::InferenceMode::is_enabled()) return false;
    call.add_geometry(tensor);
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(args); ++i) {
      if (!call.add_static(PyTuple_GET_ITEM(args, i))) return false;
    }
    source = &tensor;
    return true;
  }

  static Ref alias(const at::Tensor& source, const Views::Geometry& geometry) {
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(source.storage()), source.key_set(), source.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(
        geometry.size, geometry.stride, source.storage_offset() + geometry.offset);
    return Ref(THPVariable_Wrap(std::move(view)));
  }

  static Ref aliases(const at::Tensor& source, const Views& views) {
    if (!views.is_list) return alias(source, views.geometries[0]);
    Ref list(PyList_New(views.geometries.size()));
    for (size_t i = 0; i < views.geometries.size(); ++i) {
      Ref made = alias(source, views.geometries[i]);
      if (!made) return {};
      PyList_SET_ITEM(list.get(), i, made.release());
    }
    return list;
  }

  void learn(const Key& key, const at::Tensor& source, PyObject* result) {
    auto views = std::make_shared<Views>();
    views->is_list = !THPVariable_Check(result);
    if (!views->is_list) {
      if (!add(*views, source, result)) return;
    } else {
      Ref items(PySequence_Fast(result, "a view kernel returned something other than tensors"));
      if (!items) {
        PyErr_Clear();
        return;
      }
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
        if (!add(*views, source, PySequence_Fast_GET_ITEM(items.get(), i))) return;
      }
    }
    if (known_.size() >= MOST_GEOMETRIES) known_.clear();
    known_[key] = std::move(views);
  }

  // False for a view that is more than a geometry (`view_as_real` has another dtype).
  static bool add(Views& views, const at::Tensor& source, PyObject* item) {
    if (!THPVariable_Check(item)) return false;
    const at::Tensor& view = THPVariable_Unpack(item);
    if (view.dtype() != source.dtype() || view.key_set() != source.key_set() || !view.is_alias_of(source)) return false;
    views.geometries.push_back(
        {view.sizes().vec(), view.strides().vec(), view.storage_offset() - source.storage_offset()});
    return true;
  }

  Ref general_;
  std::unordered_map<Key, std::shared_ptr<Views>, Hash> known_;
};
