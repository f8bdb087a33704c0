// View kernels: a table of known geometries before the general path, which is written in Python.
#pragma once

#include "key.h"

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

#include <unordered_map>

constexpr size_t MOST_GEOMETRIES = 4096;  // that one table has

// Where the views of a call are, relative to its tensor.
struct Views {
  struct Geometry {
    std::vector<int64_t> size, stride;
    int64_t offset;
  };
  std::vector<Geometry> geometries;
  bool is_list = false;

  // False for a view that is more than a geometry (`view_as_real` has another dtype).
  bool add(const at::Tensor& source, const at::Tensor& view) {
    if (view.dtype() != source.dtype() || view.key_set() != source.key_set() || !view.is_alias_of(source)) return false;
    geometries.push_back({view.sizes().vec(), view.strides().vec(), view.storage_offset() - source.storage_offset()});
    return true;
  }

  // The view or views of a tensor, as the dispatcher returns them.
  c10::IValue of(const at::Tensor& source) const {
    if (!is_list) return alias(source, geometries[0]);
    c10::List<at::Tensor> list;
    list.reserve(geometries.size());
    for (const Geometry& geometry : geometries) list.push_back(alias(source, geometry));
    return list;
  }

 private:
  static at::Tensor alias(const at::Tensor& source, const Geometry& geometry) {
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(source.storage()), source.key_set(), source.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(
        geometry.size, geometry.stride, source.storage_offset() + geometry.offset);
    return view;
  }
};

class KnownViews {
 public:
  std::shared_ptr<Views> find(const Key& key) const {
    auto found = table_.find(key);
    return found == table_.end() ? nullptr : found->second;
  }

  void add(const Key& key, std::shared_ptr<Views> views) {
    if (table_.size() >= MOST_GEOMETRIES) table_.clear();
    table_[key] = std::move(views);
  }

  size_t size() const { return table_.size(); }

 private:
  std::unordered_map<Key, std::shared_ptr<Views>, Hash> table_;
};

// Adds the tensor that is viewed. False if only the general path makes its views: code is traced or profiled, sizes are
// symbolic, or the view has to be of another kind than below the dispatcher, where it is an inference tensor in
// inference mode only.
inline bool add_source(Call& call, const at::Tensor& tensor) {
  if (!is_zero(PyDict_GetItemWithError(engine.tracing, names.depth))) return false;
  if (!tensor.defined() || !tensor.is_privateuseone() || !tensor.has_storage()) return false;
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
  if (tensor.is_inference() != c10::InferenceMode::is_enabled()) return false;
  call.add_geometry(tensor);
  return true;
}
