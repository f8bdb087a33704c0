// Makes a Python type of a C++ class with a constructor of one object, `call`, `known`, `general`,
// `traverse` and `clear`.
#pragma once

#include "python.h"

#include <torch/csrc/Exceptions.h>

template <typename Class>
struct Callable {
  PyObject_HEAD
  Class* content;

  static inline PyTypeObject* type = nullptr;  // set by `add_to`

  static Class*& content_of(PyObject* self) { return reinterpret_cast<Callable*>(self)->content; }

  static PyObject* make(PyTypeObject* cls, PyObject* args, PyObject*) {
    PyObject* argument;
    if (!PyArg_ParseTuple(args, "O", &argument)) return nullptr;
    PyObject* self = cls->tp_alloc(cls, 0);
    if (self != nullptr) content_of(self) = new Class(argument);
    return self;
  }

  static PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
    HANDLE_TH_ERRORS
    return content_of(self)->call(args, kwargs).release();
    END_HANDLE_TH_ERRORS
  }

  static PyObject* known(PyObject* self, void*) { return PyLong_FromSize_t(content_of(self)->known()); }

  static PyObject* general(PyObject* self, void*) { return content_of(self)->general().release(); }

  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return content_of(self) == nullptr ? 0 : content_of(self)->traverse(visit, arg);
  }

  static int clear(PyObject* self) {
    if (content_of(self) != nullptr) content_of(self)->clear();
    return 0;
  }

  static void deallocate(PyObject* self) {
    PyObject_GC_UnTrack(self);
    PyTypeObject* cls = Py_TYPE(self);
    delete content_of(self);
    cls->tp_free(self);
    Py_DECREF(cls);
  }

  // Adds the type to a module; false if that raised an exception.
  static bool add_to(PyObject* module, const char* name, const char* qualified) {
    static PyGetSetDef attributes[] = {
        {"known", known, nullptr, "How many calls it knows.", nullptr},
        {"general", general, nullptr, "What runs every other call.", nullptr},
        {nullptr, nullptr, nullptr, nullptr, nullptr},
    };
    PyType_Slot slots[] = {
        {Py_tp_getset, attributes},
        {Py_tp_new, reinterpret_cast<void*>(make)},
        {Py_tp_call, reinterpret_cast<void*>(call)},
        {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
        {Py_tp_clear, reinterpret_cast<void*>(clear)},
        {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
        {0, nullptr},
    };
    PyType_Spec spec = {qualified, sizeof(Callable), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    return type != nullptr && PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(type)) == 0;
  }
};
