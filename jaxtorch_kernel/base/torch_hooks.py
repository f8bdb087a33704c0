"""The table of torch's private hooks: the purpose of each, and what is lost without it if it is optional."""

from __future__ import annotations

from .hooks import Hook, Hooks

_ACCELERATOR = {
    "_accelerator_synchronizeDevice": "synchronize",
    "_accelerator_getDeviceCapability": "get_device_capability",
    "_accelerator_isAllocatorInitialized": "memory_stats",
    "_accelerator_emptyCache": "empty_cache",
    "_accelerator_emptyHostCache": "empty_host_cache",
    "_accelerator_getDeviceStats": "memory_stats",
    "_accelerator_resetAccumulatedStats": "reset_accumulated_memory_stats",
    "_accelerator_resetPeakStats": "reset_peak_memory_stats",
    "_accelerator_getMemoryInfo": "get_memory_info",
}

_NODES_IN_GRAPH = {
    "torch._dynamo.comptime.comptime": "runs Python at the time of compilation, for",
    "torch._dynamo.comptime.ComptimeContext._i_will_not_complain_if_bc_breaks_InstructionTranslator": (
        "has the variables of"
    ),
    "torch._dynamo.variables.base.VariableTracker": "makes the results of",
    "torch._dynamo.variables.builder.wrap_fx_proxy": "makes the tensors that result from",
    "torch._dynamo.variables.functions.UserMethodVariable": "recognizes a method in",
    "torch._dynamo.variables.tensor.SymNodeVariable": "recognizes a symbolic number in",
    "torch._dynamo.exc.Unsupported": "is the error of a value that is not known in",
    "torch._dynamo.guards.GuardBuilder": "describes the values that a graph depends on, for",
    "torch._dynamo.guards.install_guard": "adds such a value, for",
    "torch._subclasses.fake_tensor.unset_fake_temporarily": "runs torch code that JAX traces, for",
    "torch._guards.detect_fake_mode": "reports whether shapes alone are computed, for",
}

TABLE = {
    # The device and its tensors.
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend": Hook(
        "names the device"
    ),
    "torch._C._get_privateuse1_backend_name": Hook("reports whether another package has named it"),
    "torch._C._acc.PrivateUse1Hooks": Hook("reports that the device is available"),
    "torch._C._acc.DeviceGuard": Hook("is the guard that switches devices"),
    "torch._C._autograd.DeviceType": Hook("numbers the types of devices"),
    "torch._C._acc.create_empty_tensor": Hook("creates a tensor on the device"),
    "torch._C.StorageBase": Hook("has the methods of a Storage that this device replaces"),
    "torch._C._construct_storage_from_data_pointer": Hook("creates a Storage of a given size"),
    "torch._C.StorageBase._cdata": Hook("identifies a Storage"),
    "torch._C.StorageBase._write_file": Hook("saves a Storage"),
    "torch._C.StorageBase._set_from_file": Hook("loads a Storage"),
    "torch._C.Generator": Hook("is the class of all generators"),
    "torch._C.Generator._cdata": Hook("identifies a generator"),
    "torch.Tensor._version": Hook("counts the writes to a tensor"),
    "torch.Tensor._base": Hook("is the tensor that a view is of"),
    "torch.Tensor._is_view": Hook("recognizes views"),
    "torch.Tensor._backward_hooks": Hook("lists the hooks of a tensor"),
    "torch.Tensor._post_accumulate_grad_hooks": Hook(
        "lists the hooks that run after a gradient is added"
    ),
    "torch._prims_common.suggest_memory_format": Hook(
        "reports whether a tensor is in channels-last format"
    ),
    # Operators and the dispatcher.
    "torch._C.DispatchKey": Hook("names the dispatch keys"),
    "torch._C.DispatchKeySet": Hook("is a set of dispatch keys"),
    "torch._C._dispatch_has_kernel_for_dispatch_key": Hook("lists the kernels of an operator"),
    "torch._C._dispatch_keys": Hook("reports the dispatch keys of a tensor"),
    "torch._C._dispatch_key_parse": Hook("finds a dispatch key by name"),
    "torch._ops.OpOverload": Hook("is the class of an operator's overloads"),
    "torch._ops.OpOverloadPacket": Hook("is the class of an operator with all its overloads"),
    "torch.autograd.Function._backward_cls": Hook(
        "is the class of the graph nodes of an autograd.Function"
    ),
    "torch.ops.aten.as_strided.default._op_dk": Hook(
        "runs an operator's kernel of a given dispatch key"
    ),
    "torch._C._dynamo.guards._reinterpret_tensor": Hook(
        "makes an alias of another geometry", without="views take longer"
    ),
    "torch.ops.aten.set_.source_Storage_storage_offset._op_dk": Hook(
        "puts a tensor on another Storage"
    ),
    "torch.ops.aten.add.Tensor._schema": Hook("is the signature of an operator"),
    "torch.ops.aten.add.Tensor._overloadname": Hook("is the name of an overload"),
    "torch._C._swap_tensor_impl": Hook(
        "swaps the contents of two tensors",
        without="nothing can be lowered from the meta device",
    ),
    "torch._C._set_conj": Hook("makes a tensor lazily conjugated"),
    "torch._C._set_neg": Hook("makes a tensor lazily negated"),
    "torch._neg_view": Hook("makes a lazily negated view"),
    "torch._C._len_torch_dispatch_stack": Hook("reports whether a dispatch mode is active"),
    "torch._C._len_torch_function_stack": Hook("counts the function modes that are open"),
    "torch._C._get_function_stack_at": Hook("returns one of the function modes"),
    "torch._C.DisableTorchFunctionSubclass": Hook("calls torch without `__torch_function__`"),
    "torch._linalg_check_errors": Hook("raises the errors of `torch.linalg`"),
    "torch._decomp.decomposition_table": Hook(
        "defines operators by others", without="operators without a lowering run on the CPU"
    ),
    "torch._refs": Hook(
        "adds to those definitions", without="some operators without a lowering run on the CPU"
    ),
    "torch._C._get_overrideable_sdp_enabled": Hook(
        "reports the choice of `sdpa_kernel`", without="attention ignores `sdpa_kernel`"
    ),
    "torch._C._ExcludeDispatchKeyGuard": Hook("lets autocast call an operator below itself"),
    "torch._C._is_any_autocast_enabled": Hook("reports whether autocast is active for any device"),
    **{
        f"torch._C.{name}": Hook(
            f"answers `torch.accelerator.{function}`",
            without=f"`torch.accelerator.{function}` raises an error",
        )
        for name, function in _ACCELERATOR.items()
    },
    **{
        f"torch._C._accelerator_{name}": Hook(
            f"checks the index of `torch.accelerator.{function}`",
            without=f"`torch.accelerator.{function}` accepts any index",
        )
        for name, function in (
            ("setDeviceIndex", "set_device_index"),
            ("exchangeDevice", "device_index"),
            ("maybeExchangeDevice", "device_index"),
        )
    },
    "torch.optim.Adam._init_group": Hook(
        "creates the state of an optimizer", without="a training step is traced twice"
    ),
    # Autograd.
    "torch.autograd.forward_ad._current_level": Hook("reports whether forward-mode AD is active"),
    "torch._C._autograd._get_sequence_nr": Hook("numbers the nodes of a backward pass"),
    "torch.autograd.graph.Node:_sequence_nr": Hook("is the number of a node"),
    "torch._C._autograd._top_saved_tensors_default_hooks": Hook(
        "reports whether saved-tensor hooks are active"
    ),
    "torch._C._autograd._get_current_graph_task_keep_graph": Hook(
        "reports whether a backward pass retains its graph"
    ),
    "torch._C._current_autograd_node": Hook("returns the node that a backward pass is running"),
    "torch._C._is_key_in_tls": Hook("reports whether a thread has options of its own"),
    "torch._C._get_obj_in_tls": Hook("reads a thread's options, also in autograd's threads"),
    "torch._C._stash_obj_in_tls": Hook("keeps a thread's options"),
    # `torch.func` and captured code.
    "torch._C._functorch.is_functorch_wrapped_tensor": Hook(
        "recognizes tensors of a `torch.func` transform"
    ),
    "torch._C._functorch.peek_interpreter_stack": Hook(
        "reports whether a `torch.func` transform is running"
    ),
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack": Hook(
        "records a call on tensors outside the `torch.func` transforms that are running"
    ),
    "torch._C._functorch.unwrap_if_dead": Hook(
        "takes a tensor out of a `torch.func` transform that has ended"
    ),
    "torch._C._is_fwd_grad_enabled": Hook("reports whether forward-mode AD is switched off"),
    "torch.autograd.forward_ad._set_fwd_grad_enabled": Hook(
        "switches forward-mode AD off for a block"
    ),
    "torch._C._get_dispatch_mode": Hook("reports whether `make_fx` records operators"),
    "torch._C._TorchDispatchModeKey": Hook("names the mode of `make_fx`"),
    "torch._C._functorch._vmap_increment_nesting": Hook("opens a level of `torch.vmap`"),
    "torch._C._functorch._vmap_decrement_nesting": Hook("closes a level of `torch.vmap`"),
    "torch._C._functorch._add_batch_dim": Hook("makes a tensor a batch of `torch.vmap`"),
    "torch._C._functorch._remove_batch_dim": Hook("makes a batch a tensor again"),
    "torch._C._functorch.TransformType": Hook("names the kinds of transforms"),
    "torch._C._functorch.is_batchedtensor": Hook("recognizes the batches of `torch.vmap`"),
    "torch._C._functorch.get_unwrapped": Hook("returns a tensor as the transform around sees it"),
    "torch._subclasses.fake_tensor.is_fake": Hook("recognizes tensors without data in transforms"),
    "torch.autograd.function.FunctionMeta": Hook(
        "is asked by `Function.apply` for what it calls, whichever name the code knows it by"
    ),
    "torch.autograd.function.BackwardCFunction": Hook("is the node of a call of `Function.apply`"),
    "torch._functorch.predispatch.lazy_load_decompositions": Hook(
        "loads the batching rules of some operators",
        without="`torch.vmap` lacks the rules of some operators",
    ),
    "torch._subclasses.fake_tensor.FakeTensor": Hook("is a tensor without data"),
    "torch._subclasses.fake_tensor.FakeTensorMode": Hook("runs code on tensors without data"),
    "torch.utils._pytree": Hook("flattens arguments and results"),
    "torch.nn.Module._call_impl": Hook(
        "calls a module; stack frames inside modules are recognized by it"
    ),
    "torch.nn.Module:_modules": Hook("holds the modules within a module"),
    "torch.nn.Module:_buffers": Hook("holds the buffers of a module"),
    "torch.nn.Module:_parameters": Hook("holds the parameters of a module"),
    "torch.nn.Module:_forward_pre_hooks": Hook(
        "holds the hooks that run before a module's forward"
    ),
    "torch.nn.modules.lazy.LazyModuleMixin._infer_parameters": Hook(
        "fills the parameters of a lazy module"
    ),
    "torch.nn.Module._maybe_warn_non_full_backward_hook": Hook(
        "runs where a module has a backward hook"
    ),
    "torch._higher_order_ops.utils._hop_compile_and_call": Hook(
        "is how an eager `torch.cond` reaches its operator",
        without="Dynamo compiles `torch.cond` and similar functions first",
    ),
    "torch.distributions.Distribution._validate_sample": Hook(
        "checks the values of a sample, which captured code does not have"
    ),
    "torch.compiler._is_compiling_flag": Hook(
        "makes `torch.compiler.is_compiling()` true inside captured code",
        without="`torch.compiler.is_compiling()` is false inside captured code, so optimizers read more values",
    ),
    "torch.utils.checkpoint.checkpoint.__wrapped__": Hook(
        "is what `torch.utils.checkpoint.checkpoint` calls",
        without="`torch.utils.checkpoint` recomputes nothing in captured code",
    ),
    # Defaults of a session.
    "torch._GLOBAL_DEVICE_CONTEXT": Hook("holds what `torch.set_default_device` set"),
    "torch.overrides._get_current_function_mode_stack": Hook(
        "reports whether a `with torch.device` block is open"
    ),
    "torch.utils._device.DeviceContext": Hook("is the mode of a `with torch.device` block"),
    "torch.serialization._get_restore_location": Hook(
        "decides where `torch.load` puts tensors",
        without="`torch.load` ignores the session's default device",
    ),
    # Sharing memory with JAX.
    "torch._C._to_dlpack": Hook("exports a tensor of another device as a capsule"),
    "torch._C._from_dlpack": Hook("makes a tensor over the memory of a capsule"),
    "torch._C._set_throw_on_mutable_data_ptr": Hook("makes a tensor refuse writes"),
    "torch._C._data_address": Hook("gives the address of a tensor that refuses writes"),
    "torch._C._storage_Use_Count": Hook("counts the users of a Storage"),
    # Dynamo, which is imported when it is used.
    "torch._C._dynamo.guards.TensorGuards": Hook("compares tensors with those of an earlier call"),
    "torch._library.opaque_object._OPAQUE_TYPES": Hook(
        "lists the classes that are opaque to Dynamo",
        without="compiled code that uses a jax generator may draw nothing",
    ),
    "torch._dynamo.trace_rules.add": Hook(
        "lets Dynamo skip a package",
        without="Dynamo looks into jaxtorch, which makes calls of compiled code slow",
    ),
    **{
        path: Hook(
            f"{purpose} a call of JAX in code that Dynamo traces",
            without="`torch.compile` ends its graph at a call of JAX",
        )
        for path, purpose in _NODES_IN_GRAPH.items()
    },
    "torch._TorchCompileInductorWrapper.__call__": Hook(
        "is called by `torch.compile` without `backend=`",
        without="the error of `torch.compile(f)` does not say `backend='jax'`",
    ),
    "torch._dynamo.eval_frame._callback_from_stance": Hook(
        "lets the compiled functions that captured code calls run as Python",
        without="a captured program may not notice a change of what such a function reads",
    ),
    "torch._C._dynamo.eval_frame.set_fullgraph_compiled_frame_count": Hook(
        "lets functions compiled with `fullgraph=True` run as Python in captured code",
        without="captured code cannot call them",
    ),
    "torch._dynamo.disable:_torchdynamo_disable": Hook("marks a function that Dynamo does not run"),
    "torch._dynamo.disable:_torchdynamo_disable_msg": Hook("is the reason that Dynamo states"),
    "torch._dynamo.disable": Hook(
        "keeps Dynamo out of `torch.utils.checkpoint` and of Meta functions, as torch does",
        without="Dynamo looks into them",
    ),
    "torch._disable_dynamo": Hook(
        "decorates Meta functions, whose first call imports Dynamo",
        without="the first operator takes a second longer",
    ),
    "torch._decomp.global_decomposition_table": Hook(
        "has the Meta functions that are written in Python",
        without="the first operator takes a second longer",
    ),
    "torch._C._dynamo.eval_frame": Hook(
        "lets Dynamo skip a function",
        without="Dynamo looks into jaxtorch, which makes calls of compiled code slow",
    ),
}

HOOKS = Hooks("torch", TABLE)
