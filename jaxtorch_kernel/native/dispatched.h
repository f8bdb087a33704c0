// Kernels that torch's dispatcher calls without a way through Python.
//
// The dispatcher calls a Python function with a tuple of Python objects, and converts what it returns. This takes
// 0.7 µs, as much as the rest of a recorded call. So the kernel of an operator that writes nothing is written in C++,
// with a table of its own. Its Python function is registered for PrivateUse2, a key that no tensor has. Calls that are
// not known go there.
#pragma once

#include "kernel.h"
#include "torch_arguments.h"
#include "view.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

// Where the Python function of an operator is registered.
constexpr auto IN_PYTHON = c10::DispatchKey::PrivateUse2;

// The GIL. Exceptions of Python leave as ones of C++.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

[[noreturn]] inline void throw_python_error() {
  python_error error;
  error.persist();
  throw std::move(error);
}

inline c10::ArrayRef<c10::IValue> arguments_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  size_t count = op.schema().arguments().size();
  return c10::ArrayRef<c10::IValue>(stack.data() + stack.size() - count, count);
}

class Dispatched : public c10::OperatorKernel {
 public:
  virtual void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) = 0;
};

class DispatchedKernel final : public Dispatched {
 public:
  DispatchedKernel(PyObject* function, const Kernel& kernel) : kernel_(kernel) {
    Py_INCREF(function);  // for good: torch's dispatcher ends after the interpreter
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) override {
    Gil gil;
    Key unknown;
    {
      Borrowed call;
      if (kernel_.knows_calls() && describe(op, *stack, *call)) {
        std::shared_ptr<Known> known;
        if (!known_.find(call->key, known)) {
          unknown = call->key;
        } else if (known != nullptr) {
          Results results;
          Outcome outcome = known->run(*call, results);
          if (outcome == Outcome::RAISED) throw_python_error();
          if (outcome == Outcome::DONE) return push(op, known->structure(), std::move(results), *stack);
        }
      }
      if (!drop_exception()) throw_python_error();
    }
    op.redispatchBoxed(c10::DispatchKeySet(IN_PYTHON), stack);
    std::shared_ptr<Known> known = std::exchange(Kernel::last_known(), {}).lock();
    if (!unknown.empty() && known != nullptr) known_.add(std::move(unknown), std::move(known));
  }

 private:
  // As torch calls a Python function: without the positional arguments at the end that have their defaults, and without
  // keywords that have theirs. If any keyword is left, the general path fills in all defaults.
  bool describe(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call) const {
    const auto& declared = op.schema().arguments();
    auto arguments = arguments_of(op, stack);
    auto is_default = [&](size_t i) {
      const auto& value = declared[i].default_value();
      return value.has_value() && arguments[i] == *value;
    };
    if (kernel_.kinds().size() != declared.size() || !add_state(call.key)) return false;
    size_t positional = declared.size();
    bool has_keyword = false;
    for (; positional > 0 && declared[positional - 1].kwarg_only(); --positional)
      has_keyword = has_keyword || !is_default(positional - 1);
    size_t count = has_keyword ? declared.size() : positional;
    while (!has_keyword && count > 0 && is_default(count - 1)) --count;
    call.key.push_back(count);
    for (size_t i = 0; i < count; ++i) {
      if (!add(call, Kind(kernel_.kinds()[i]), arguments[i])) return false;
    }
    return true;
  }

  static void push(const c10::OperatorHandle& op, Structure structure, Results results, torch::jit::Stack& stack) {
    torch::jit::drop(stack, op.schema().arguments().size());
    if (structure == Structure::LIST) {
      stack.emplace_back(c10::List<at::Tensor>(results));
      return;
    }
    for (at::Tensor& result : results) stack.emplace_back(std::move(result));
  }

  const Kernel& kernel_;  // of the function
  KnownCalls known_;
};

class DispatchedView final : public Dispatched {
 public:
  // `as_strided` takes an offset in the storage, and is checked against the storage's size.
  explicit DispatchedView(bool depends_on_storage) : depends_on_storage_(depends_on_storage) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) override {
    Gil gil;
    Borrowed call;
    auto arguments = arguments_of(op, *stack);
    bool is_described = describe(arguments, *call);
    if (!drop_exception()) throw_python_error();
    if (auto views = is_described ? known_.find(call->key) : nullptr) {
      c10::IValue made = views->of(arguments[0].toTensor());
      torch::jit::drop(*stack, arguments.size());
      stack->push_back(std::move(made));
      return;
    }
    at::Tensor source = arguments[0].toTensor();
    op.redispatchBoxed(c10::DispatchKeySet(IN_PYTHON), stack);
    if (is_described) learn(call->key, source, stack->back());
  }

 private:
  bool describe(c10::ArrayRef<c10::IValue> arguments, Call& call) const {
    const at::Tensor& source = arguments[0].toTensor();
    if (!add_source(call, source) || (depends_on_storage_ && !call.add_place(source))) return false;
    for (const c10::IValue& argument : arguments.slice(1)) {
      if (!add_static(call, argument)) return false;
    }
    return true;
  }

  void learn(const Key& key, const at::Tensor& source, const c10::IValue& result) {
    auto views = std::make_shared<Views>();
    views->is_list = !result.isTensor();
    if (!views->is_list) {
      if (!views->add(source, result.toTensor())) return;
    } else {
      for (const c10::IValue& item : result.toListRef()) {
        if (!views->add(source, item.toTensor())) return;
      }
    }
    known_.add(key, std::move(views));
  }

  const bool depends_on_storage_;
  KnownViews known_;
};

// Registers a kernel for good.
template <c10::DispatchKey key>
inline void register_kernel(const std::string& name, std::unique_ptr<Dispatched> kernel) {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
}
