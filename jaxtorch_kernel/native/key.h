// What a call depends on, as a list of words: it stands for the key that `dispatch/call.py` makes.
#pragma once

#include "tensors.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_set>
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
enum Tag : Word { NONE = 1, TENSOR, INTEGER_OPERAND, FLOAT_OPERAND, BOOL, INTEGER, FLOAT, DTYPE, LAYOUT, TEXT, LIST };

// The kinds of arguments, as in `dispatch/schema.py`. Calls with an argument of another kind take the general path.
enum Kind : char { OF_TENSOR = 0, OF_NUMBER = 1, OF_TENSORS = 2, OF_NUMBERS = 3, STATIC = 5, FLAG = 6 };

// A call, taken apart.
struct Call {
  Key key;
  std::vector<const at::Tensor*> tensors;  // they belong to the arguments
  std::vector<Ref> buffers;
  std::vector<Ref> numbers;

  void clear() {
    key.clear();
    tensors.clear();
    buffers.clear();
    numbers.clear();
  }

  // Whether no two tensors share memory.
  bool is_disjoint() const {
    std::unordered_set<PyObject*> found;
    found.reserve(buffers.size());
    return std::all_of(
        buffers.begin(), buffers.end(), [&](const Ref& buffer) { return found.insert(buffer.get()).second; });
  }

  void add_geometry(const at::Tensor& tensor) {
    key.push_back(TENSOR | Word(tensor.dim()) << 8 | Word(tensor.scalar_type()) << 32);
    for (int64_t n : tensor.sizes()) key.push_back(n);
    for (int64_t n : tensor.strides()) key.push_back(n);
  }

  // Where a tensor is in which kind of buffer.
  bool add_place(const at::Tensor& tensor) {
    Ref buffer = buffer_of(tensor);
    return buffer && add_words(reinterpret_cast<Word>(slot(buffer.get(), engine.spec)), Word(tensor.storage_offset()));
  }

  bool add_tensor(const at::Tensor& tensor) {
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

  bool add_number(Ref number) {
    if (!number) return false;
    key.push_back(PyFloat_CheckExact(number.get()) ? FLOAT_OPERAND : INTEGER_OPERAND);
    numbers.push_back(std::move(number));
    return true;
  }

  bool add_static(bool value) { return add_words(BOOL | Word(value) << 8); }
  bool add_static(int64_t value) { return add_words(INTEGER, Word(value)); }
  bool add_static(double value) {
    Word bits;
    std::memcpy(&bits, &value, sizeof bits);
    return add_words(FLOAT, bits);
  }
  bool add_dtype(at::ScalarType dtype) { return add_words(DTYPE, Word(dtype)); }
  bool add_memory_format(at::MemoryFormat format) { return add_words(LAYOUT, Word(format)); }
  bool add_none() { return add_words(NONE); }
  bool add_list(size_t size) { return add_words(LIST | Word(size) << 8); }

  bool add_text(std::string_view text) {
    key.push_back(TEXT | Word(text.size()) << 8);
    for (size_t i = 0; i < text.size(); i += sizeof(Word)) {
      Word word = 0;
      std::memcpy(&word, text.data() + i, std::min(sizeof word, text.size() - i));
      key.push_back(word);
    }
    return true;
  }

 private:
  template <typename... Words>
  bool add_words(Words... words) {
    (key.push_back(words), ...);
    return true;
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
    call_->clear();
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
