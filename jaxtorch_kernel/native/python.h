// References to Python objects, and the names and objects that the other files use.
#pragma once

#include <Python.h>
#include <structmember.h>

#include <utility>

// An owned reference. Empty if the call that made it raised an exception.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(const Ref& other) : object_(other.object_) { Py_XINCREF(object_); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  static Ref to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// The Python side of the engine, set once by `configure`. Nothing here is ever freed.
struct Engine {
  PyTypeObject* buffer;       // storage.buffer.Buffer
  PyObject* tracing;          // the namespace of programs.tracing: `depth`
  PyObject* placement;        // the namespace of storage.placement: `any_mesh`
  PyObject* deferring;        // the namespace of dispatch.deferring: `recorder`
  PyObject* config;           // base.options.config: `_base`, `_open`
  PyObject* user_files;       // programs.site: whether a file is the user's, by name
  PyObject* is_user_file;     // programs.site.is_user_file, for a file that is not among them
  PyObject* array_type;       // numpy.ndarray
  Py_ssize_t array, spec, origin;  // the slots of a Buffer
  Py_ssize_t call;                 // the slot of an Executable
};

inline Engine engine;

// Interned attribute names.
struct Names {
  PyObject *buffer, *depth, *recorder, *base, *open, *quick, *acquire, *release;
  PyObject *add_input, *is_deleted, *opened, *extended, *flush_full, *cls, *any_mesh;
  PyObject *f, *i;  // the kinds of numbers
};

inline Names names;

inline PyObject*& slot(PyObject* object, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
}

// Drops an exception that the general path will raise again, if it is one. False for Ctrl-C, which must not get lost.
inline bool drop_exception() {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();
  return true;
}

// Whether an attribute of a namespace is the integer 0.
inline bool is_zero(PyObject* value) {
  return value != nullptr && PyLong_CheckExact(value) && PyLong_AsLong(value) == 0;
}
