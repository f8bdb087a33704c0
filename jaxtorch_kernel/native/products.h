// `linear` and `matmul` above autograd: the choice of `operators/products.py` for ordinary calls.
//
// A model calls them hundreds of times in a step, and the way through the Python function takes 4 µs. The function is
// registered for AutogradPrivateUse2, a key that no tensor has. It takes every other call: in a transform, a mode or a
// trace, of sharded tensors, with arguments that torch has an error for.
#pragma once

#include "dispatched.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/forward_grad.h>

class Product final : public Dispatched {
 public:
  // `is_layer`: the second argument is a matrix, and a third one its bias. `has_formula`: torch has one for its gradient.
  Product(bool is_layer, bool has_formula) : is_layer_(is_layer), has_formula_(has_formula) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) override {
    op.redispatchBoxed(chosen(arguments_of(op, *stack)), stack);
  }

 private:
  // What runs the call: the Python function, torch's formula, or the kernel.
  c10::DispatchKeySet chosen(c10::ArrayRef<c10::IValue> arguments) const {
    const c10::DispatchKeySet in_python(c10::DispatchKey::AutogradPrivateUse2);
    if (!is_ordinary_state() || !are_ordinary(arguments)) return in_python;
    auto requires_grad = [](const c10::IValue& a) { return a.isTensor() && a.toTensor().requires_grad(); };
    bool is_recorded = at::GradMode::is_enabled() && std::any_of(arguments.begin(), arguments.end(), requires_grad);
    const c10::DispatchKeySet kernel(c10::DispatchKey::PrivateUse1);
    if (!is_recorded) return kernel;
    // Autograd for nested tensors uses the formula: see `_FORMULAS` of `base/torch_private.py`.
    return has_formula_ ? kernel | c10::DispatchKeySet(c10::DispatchKey::AutogradNestedTensor) : in_python;
  }

  static bool is_ordinary_state() {
    // Included while a transform of `torch.func` is active.
    if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) return false;
    if (c10::impl::TorchDispatchModeTLS::stack_len() > 0) return false;
    if (torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr) return false;
    Gil gil;
    return is_zero(PyDict_GetItemWithError(engine.tracing, names.depth)) &&
           PyDict_GetItemWithError(engine.placement, names.any_mesh) == Py_False;
  }

  bool are_ordinary(c10::ArrayRef<c10::IValue> arguments) const {
    const at::ScalarType dtype = arguments[0].toTensor().scalar_type();
    if (!at::isFloatingType(dtype)) return false;
    for (const c10::IValue& argument : arguments) {
      if (argument.isTensor() && !is_ordinary(argument.toTensor(), dtype)) return false;
    }
    if (!is_layer_) return true;
    const at::Tensor &input = arguments[0].toTensor(), &weight = arguments[1].toTensor();
    if (input.dim() == 0 || weight.dim() != 2) return false;
    if (!arguments[2].isTensor()) return true;
    const at::Tensor& bias = arguments[2].toTensor();
    return bias.dim() == 1 && bias.size(0) == weight.size(0);
  }

  // Whether it is a tensor of the device that the dispatcher does not replace by another, as `_NOT_PLAIN` of
  // `base/torch_private.py`.
  static bool is_ordinary(const at::Tensor& tensor, at::ScalarType dtype) {
    static const c10::DispatchKeySet not_plain(
        {c10::DispatchKey::Python, c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched,
         c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
    return tensor.defined() && tensor.is_privateuseone() && tensor.scalar_type() == dtype &&
           !tensor.key_set().has_any(not_plain);
  }

  const bool is_layer_, has_formula_;
};
