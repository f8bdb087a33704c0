// The module: types of kernels, and the functions that connect them with the engine in Python.
#include "callable.h"
#include "parameters.h"
#include "products.h"
#include "window.h"

namespace {

bool read_slot(PyObject* type, const char* name, Py_ssize_t& offset) {
  Ref descriptor(PyObject_GetAttrString(type, name));
  if (!descriptor || !PyObject_TypeCheck(descriptor.get(), &PyMemberDescr_Type)) {
    PyErr_Format(PyExc_TypeError, "%R has no slot %s", type, name);
    return false;
  }
  offset = reinterpret_cast<PyMemberDescrObject*>(descriptor.get())->d_member->offset;
  return true;
}

PyObject* configure(PyObject*, PyObject* args) {
  PyObject *buffer, *executable;
  Engine e{};
  if (!PyArg_ParseTuple(
          args, "O!OOOOOOOO", &PyType_Type, &buffer, &executable, &e.tracing, &e.placement, &e.deferring, &e.config,
          &e.user_files, &e.is_user_file, &e.array_type))
    return nullptr;
  if (!read_slot(buffer, "array", e.array) || !read_slot(buffer, "spec", e.spec) ||
      !read_slot(buffer, "origin", e.origin) || !read_slot(executable, "call", e.call))
    return nullptr;
  e.buffer = reinterpret_cast<PyTypeObject*>(buffer);
  for (PyObject* object :
       {buffer, executable, e.tracing, e.placement, e.deferring, e.config, e.user_files, e.is_user_file, e.array_type})
    Py_INCREF(object);
  engine = e;
  Py_RETURN_NONE;
}

PyObject* configure_recording(PyObject*, PyObject* args) {
  PyObject *recorder, *window, *node;
  Recording r;
  if (!PyArg_ParseTuple(
          args, "O!OOOllL", &PyType_Type, &recorder, &window, &node, &r.pending_classes, &r.least_loop,
          &r.most_constant, &r.most_bytes))
    return nullptr;
  auto& w = r.of_window;
  auto& n = r.of_node;
  if (!read_slot(recorder, "lock", r.lock) || !read_slot(recorder, "window", r.window) ||
      !read_slot(recorder, "most_calls", r.most_calls) || !read_slot(window, "node", w.node) ||
      !read_slot(window, "leader", w.leader) || !read_slot(window, "buffers", w.buffers) ||
      !read_slot(window, "inputs", w.inputs) || !read_slot(window, "indices", w.indices) ||
      !read_slot(window, "numbers", w.numbers) || !read_slot(window, "offsets", w.offsets) ||
      !read_slot(node, "next", n.next) || !read_slot(node, "results", n.results) ||
      !read_slot(node, "inputs", n.inputs) || !read_slot(node, "views", n.views) ||
      !read_slot(node, "numbers", n.numbers) || !read_slot(node, "calls", n.calls) ||
      !read_slot(node, "nbytes", n.nbytes))
    return nullptr;
  r.recorder = reinterpret_cast<PyTypeObject*>(Ref::to(recorder).release());
  Py_INCREF(r.pending_classes);
  recording = r;
  Py_RETURN_NONE;
}

// Lets torch's dispatcher call a kernel without a way through Python: that of a Kernel, or of a view operator (None).
// False if the operator writes: its Python function is then called as any other.
PyObject* dispatch(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const char *name, *overload;
  PyObject* function;
  if (!PyArg_ParseTuple(args, "ssO", &name, &overload, &function)) return nullptr;
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  if (op.schema().is_mutable()) Py_RETURN_FALSE;
  std::unique_ptr<Dispatched> kernel;
  if (function == Py_None) {
    kernel = std::make_unique<DispatchedView>(op.schema().name() == "aten::as_strided");
  } else if (Py_TYPE(function) == Callable<Kernel>::type) {
    kernel = std::make_unique<DispatchedKernel>(function, *Callable<Kernel>::content_of(function));
  } else {
    return PyErr_Format(PyExc_TypeError, "not a Kernel: %R", function);
  }
  auto full_name = std::string(name) + (*overload ? "." : "") + overload;
  register_kernel<c10::DispatchKey::PrivateUse1>(full_name, std::move(kernel));
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyObject* dispatch_product(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const char* name;
  int is_layer, has_formula;
  if (!PyArg_ParseTuple(args, "spp", &name, &is_layer, &has_formula)) return nullptr;
  register_kernel<c10::DispatchKey::AutogradPrivateUse1>(
      name, std::make_unique<Product>(is_layer != 0, has_formula != 0));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* forget(PyObject*, PyObject*) {
  KnownCalls::forget_all();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, "Connect the kernels with the engine; see `dispatch/native_calls.py`."},
    {"configure_recording", configure_recording, METH_VARARGS, "Connect them with the recorder of deferred execution."},
    {"dispatch", dispatch, METH_VARARGS, "Let torch's dispatcher call a kernel without a way through Python."},
    {"dispatch_product", dispatch_product, METH_VARARGS, "The same for an operator of `operators/products.py`."},
    {"held", held, METH_O, "As `held` of `deferred/run.py`."},
    {"shared", shared, METH_VARARGS, "As `shared` there."},
    {"run_and_settle", run_and_settle, METH_VARARGS, "As `run_and_settle` there."},
    {"are_plain", are_plain, METH_O, "As `are_plain` of `device/optimizers.py`."},
    {"forget", forget, METH_NOARGS, "Forget all known calls: programs were set aside or dropped."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "calls", "The fast paths of eager calls.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_calls() {
  auto name = PyUnicode_InternFromString;
  names = {name("buffer"), name("depth"), name("recorder"), name("_base"), name("_open"), name("quick"),
           name("acquire"), name("release"), name("add_input"), name("is_deleted"), name("_opened"),
           name("_extended"), name("_flush_full"), name("__class__"), name("any_mesh"), name("f"), name("i")};
  Ref module(PyModule_Create(&definition));
  if (!module || !Callable<Kernel>::add_to(module.get(), "Kernel", "jaxtorch.native.Kernel")) return nullptr;
  return module.release();
}
