"""The fast paths of eager calls in C++: an optional module in front of the kernels in Python.

A kernel of this module is a table of known calls (`kernel.h`). It describes a call as a list of words (`key.h`), looks
up what runs it (`known.h`), and runs it (`program.h`) or records it (`recording.h`). Every other call goes to the
general path in Python, and so does a call of which anything is unusual: code is being traced or profiled, an argument
is on another device, a number is new, tensors that it writes share memory, the program raises an exception. So the
module decides nothing, and whatever it does the general path does as well: `tests/native/` compares them. View
operators have a table of geometries (`view.h`). torch's dispatcher calls the kernels directly (`dispatched.h`), and has
a function in front of `linear` and `matmul` (`products.h`). Some functions of the flush of a window (`window.h`) and of
an optimizer's step (`parameters.h`) replace those of the same names in Python.

The module is compiled on the machine where it runs, because it depends on the versions of torch and of Python
(`build.py`). A session that finds it compiled uses it from its first call on. Otherwise the session begins in Python, a
compiler, if there is one, works in the background, and the session takes over what it compiled (`loading.take_over`).
`JAXTORCH_NATIVE=off` keeps everything in Python.

`loading.calls` is the module, or None. What uses it says so by `loading.when_loaded` or `loading.compiled`.

Of torch's C++ it uses, besides what extensions use (`torch/library.h`, `at::Tensor`, the dispatcher): the Python object
of a Storage (`c10::impl::PyObjectSlot`, `THPStorage_Wrap`), of a tensor (`THPVariable_Wrap`) and of a dtype
(`THPDtype`), and `at::detail::make_tensor`. A torch that changes one of these does not compile it, and
`python -m jaxtorch.native` shows the compiler's message.
"""
