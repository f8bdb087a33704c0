// The end of a window: the functions of `deferred/run.py` that look at each of its buffers and arrays.
#pragma once

#include "recording.h"

// Appends an index to a list.
inline bool add_index(PyObject* list, Py_ssize_t index) {
  Ref number(PyLong_FromSsize_t(index));
  return number && PyList_Append(list, number.get()) == 0;
}

// `held(buffers)`: the indices of the buffers in a list that something else holds too.
inline PyObject* held(PyObject*, PyObject* buffers) {
  if (!PyList_CheckExact(buffers)) return PyErr_Format(PyExc_TypeError, "not a list: %R", buffers);
  Ref indices(PyList_New(0));
  for (Py_ssize_t i = 0; indices && i < PyList_GET_SIZE(buffers); ++i) {
    PyObject* buffer = PyList_GET_ITEM(buffers, i);
    if (buffer != Py_None && Py_REFCNT(buffer) > 1 && !add_index(indices.get(), i)) return nullptr;
  }
  return indices.release();
}

// `shared(arrays, indices)`: those of the items of a list that something else holds too.
inline PyObject* shared(PyObject*, PyObject* args) {
  PyObject *arrays, *wanted;
  if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &arrays, &wanted)) return nullptr;
  Ref iterator(PyObject_GetIter(wanted)), indices(PyList_New(0));
  if (!iterator || !indices) return nullptr;
  while (Ref item = Ref(PyIter_Next(iterator.get()))) {
    PyObject* array = PyList_GetItem(arrays, PyLong_AsSsize_t(item.get()));
    if (array == nullptr) return nullptr;
    if (Py_REFCNT(array) > 1 && PyList_Append(indices.get(), item.get()) < 0) return nullptr;
  }
  return PyErr_Occurred() ? nullptr : indices.release();
}

// Gives a buffer its array, if it waits for the result with this index.
inline bool settle(PyObject* buffer, PyObject* index, PyObject* array) {
  if (buffer == Py_None) return true;
  PyObject*& value = slot(buffer, engine.array);
  if (value == nullptr || !PyLong_CheckExact(value)) return true;  // not pending
  if (PyLong_AsLong(value) != PyLong_AsLong(index)) return true;
  Ref before(std::exchange(value, Ref::to(array).release()));
  PyObject* settled = PyTuple_GetItem(Py_TYPE(buffer)->tp_bases, 1);  // of a class of `storage.pending.CLASSES`
  return settled != nullptr && PyObject_SetAttr(buffer, names.cls, settled) == 0;
}

// `run_and_settle(execute, operands, buffers, indices)`: runs a program, and gives the results with these indices to
// those of the buffers that wait for them. No signal handler runs in between.
inline PyObject* run_and_settle(PyObject*, PyObject* args) {
  PyObject *execute, *operands, *buffers, *indices;
  if (!PyArg_ParseTuple(
          args, "OO!O!O!", &execute, &PyList_Type, &operands, &PyList_Type, &buffers, &PyList_Type, &indices))
    return nullptr;
  Ref arguments(PyList_AsTuple(operands));
  Ref outputs(arguments ? PyObject_CallObject(execute, arguments.get()) : nullptr);
  Ref arrays(outputs ? PySequence_Fast(outputs.get(), "a program returned something other than a list") : nullptr);
  if (!arrays) return nullptr;
  if (PySequence_Fast_GET_SIZE(arrays.get()) != PyList_GET_SIZE(indices))
    return PyErr_Format(PyExc_RuntimeError, "a program returned another number of results");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(indices); ++i) {
    PyObject* index = PyList_GET_ITEM(indices, i);
    PyObject* buffer = PyList_GetItem(buffers, PyLong_AsSsize_t(index));
    if (buffer == nullptr || !settle(buffer, index, PySequence_Fast_GET_ITEM(arrays.get(), i))) return nullptr;
  }
  Py_RETURN_NONE;
}
