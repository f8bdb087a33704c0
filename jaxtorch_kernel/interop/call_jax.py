"""JAX functions in torch code: `call_jax` and `torch_view`.

In eager mode the function is one compiled program per signature, as under `jax.jit`, and one node of torch's autograd
graph. Globals and attributes that its Python code reads are guarded, as in captured code: if one has changed, the
function is retraced. Inside captured code it is traced together with the code around it. Where Dynamo traces, for
`torch.compile`, the call is one node of its graph, which calls the function when the graph runs.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
import torch
from jax.tree_util import PyTreeDef

from ..base.ambient import of_jax
from ..base.torch_dynamo import fake_mode, node_in_graph
from ..capture.dependencies.guards import Guards
from ..capture.dependencies.recorder import Recorder, users_only
from ..capture.signature import by_value
from ..dispatch.read import contiguous_array
from ..operators.bridge import Bridge, avals_of
from ..programs import tracing
from ..programs.compiled import CompiledFunction, FlatFunction
from ..programs.trees import Tree, is_tensor, split_jax
from ..storage import placement
from ..storage.buffer import buffer_of
from ..storage.dtypes import to_numpy, to_torch

P = ParamSpec("P")
Tensor = torch.Tensor
Array = jax.Array
_in_dynamo = torch.compiler.is_dynamo_compiling
_MOST = 8  # specializations of one signature, which differ in the values that the function read


class _Results:
    """The structure of a function's results and which of them are differentiable, known once it has been traced."""

    structure: PyTreeDef
    differentiable: list[bool]


class _Specialization(NamedTuple):
    """A function specialized to one signature, and to the values that its Python code read.

    Attributes:
        bridge: runs the function.
        results: describes its results.
        guards: other values that its Python code read; None inside captured code, which has guards of its own.
        arrays: the tensors that it read by name, with their arrays at that time, which are constants of its program.
    """

    bridge: Bridge
    results: _Results
    guards: Guards | None = None
    arrays: Sequence[tuple[weakref.ref[Tensor], Array]] = ()

    def holds(self) -> bool:
        """Whether all values that it read are unchanged."""
        for reference, array in self.arrays:
            tensor = reference()
            if tensor is None or buffer_of(tensor).array is not array:
                return False
        return self.guards is None or self.guards.hold()


_Cache = dict[Hashable, list[_Specialization]]
_caches: weakref.WeakKeyDictionary[Callable[..., object], _Cache] = weakref.WeakKeyDictionary()


def call_jax(function: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Call a JAX function with torch tensors of the jax device, without a copy.

    Args:
        function: any JAX function of pytrees. A `jax.custom_vjp`, a Pallas kernel or a sharding constraint in it
            is preserved.
        *args: pytrees whose tensors become arrays of the same shape and dtype. Everything else is passed unchanged
            and is part of the signature: a new value causes a recompilation.
        **kwargs: keyword arguments, treated in the same way.

    Returns:
        The function's result, with tensors for its arrays; gradients of any order flow through them (`jax.vjp`).

    Raises:
        RuntimeError: a tensor is not on the jax device.

    Example:
        >>> import torch, jaxtorch, jax.numpy as jnp
        >>> x = torch.tensor([0.5], device="jax", requires_grad=True)
        >>> y = jaxtorch.call_jax(jnp.sin, x)
        >>> y.backward()
        >>> torch.equal(x.grad, x.detach().cos())
        True
    """
    if _in_dynamo():
        return node_in_graph(_run, function, args, kwargs)
    tensors, tree = split_jax((args, kwargs), is_tensor)
    _check_devices(tensors)
    arrays = [contiguous_array(t) for t in tensors]
    inputs = [i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex()]
    if tracing.active():
        call = _inlined(function, tree, arrays, inputs)
    else:
        cache = _caches.setdefault(function, {}) if _is_cacheable(function) else {}
        known = cache.setdefault(_key(tree, arrays), [])
        valid = next((specialization for specialization in known if specialization.holds()), None)
        if valid is None:
            valid = _traced(function, tree, arrays, inputs)
            known[:] = [valid, *known][:_MOST]
        call = valid
    outputs, others = call.bridge([tensors[i] for i in inputs], arrays)
    return _rebuild(call, outputs, others)


def torch_view(function: Callable[P, object]) -> Callable[P, Any]:
    """A JAX function as a torch function: `torch_view(f)(*args)` is `call_jax(f, *args)`.

    Example:
        >>> import torch, jaxtorch, jax.numpy as jnp
        >>> softplus = jaxtorch.torch_view(lambda x: jnp.logaddexp(x, 0.0))
        >>> x = torch.ones(3, device="jax")
        >>> torch.allclose(softplus(x), torch.nn.functional.softplus(x))
        True
    """

    @functools.wraps(function, updated=())
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> object:
        return call_jax(function, *args, **kwargs)

    return wrapper


def _check_devices(tensors: Sequence[Tensor]) -> None:
    for t in tensors:
        if t.device.type != "jax":
            raise RuntimeError(
                f"call_jax takes tensors on the jax device, but one is on {t.device}: move it with .jax()"
            )


def _run(
    function: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]
) -> object:
    """Run a node of Dynamo's graph; on fake tensors, which Dynamo traces with, return fake results."""
    tensors, tree = split_jax((args, kwargs), is_tensor)
    mode = fake_mode(tensors)
    if mode is None:
        return call_jax(function, *args, **kwargs)
    _check_devices(tensors)
    flat, results = _flattened(function, tree)
    avals = [jax.ShapeDtypeStruct(tuple(map(int, t.shape)), to_numpy(t.dtype)) for t in tensors]
    with jax.enable_x64(True):
        first, second = map(iter, jax.eval_shape(flat, *avals))
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    with mode:
        leaves = [
            _fake(next(first if d else second), needs_gradient and d)
            for d in results.differentiable
        ]
    return jax.tree.unflatten(results.structure, leaves)


def _fake(aval: jax.ShapeDtypeStruct, requires_grad: bool) -> Tensor:
    tensor = torch.empty(
        aval.shape, dtype=to_torch(aval.dtype), device="jax", requires_grad=requires_grad
    )
    return tensor.clone() if requires_grad else tensor  # the result of an operator is no leaf


def _is_cacheable(function: Callable[..., object]) -> bool:
    """Whether a function can be the key of a cache: hashable, and weakly referenced."""
    try:
        hash(function)
        _caches.setdefault(function, {})
    except TypeError:
        return False
    return True


def _key(tree: Tree, arrays: list[Array]) -> Hashable:
    statics = tuple(map(by_value, tree.statics))
    signatures = tuple((a.shape, a.dtype, a.sharding) for a in arrays)
    return of_jax(), tree.structure, tuple(tree.indices), statics, signatures


def _inlined(
    function: Callable[..., object], tree: Tree, arrays: list[Array], inputs: list[int]
) -> _Specialization:
    """The function for the open trace, of which it becomes a part."""
    flat, results = _flattened(function, tree)
    return _Specialization(_bridge(function, flat, arrays, inputs), results)


def _traced(
    function: Callable[..., object], tree: Tree, arrays: list[Array], inputs: list[int]
) -> _Specialization:
    """The function, traced once for all of its programs, while the values that it reads are recorded."""
    recorder = Recorder(function)
    flat, results = _flattened(lambda *args, **kwargs: recorder.run(args, kwargs), tree)
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(flat)(*avals_of(arrays))
    count = sum(results.differentiable)

    def replay(*operands: Array) -> tuple[list[Array], list[Array]]:
        outputs = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *operands)
        return outputs[:count], outputs[count:]

    read = [
        (reference, buffer_of(tensor).array)
        for _, reference in recorder.tensors.values()
        if (tensor := reference()) is not None
    ]
    bridge = _bridge(function, replay, arrays, inputs)
    return _Specialization(bridge, results, recorder.notes.build_guards(), read)


def _flattened(function: Callable[..., object], tree: Tree) -> tuple[FlatFunction, _Results]:
    """The function of the arrays alone, and the description of its results, which each of its runs fills in."""
    described = _Results()

    def flat(*operands: Array) -> tuple[list[Array], list[Array]]:
        args, kwargs = tree.filled(operands)
        with users_only():
            leaves, structure = jax.tree.flatten(function(*args, **kwargs))
        results = [jnp.asarray(leaf) for leaf in leaves]
        differentiable = [bool(jnp.issubdtype(r.dtype, jnp.inexact)) for r in results]
        described.structure, described.differentiable = structure, differentiable
        return (
            [r for r, s in zip(results, differentiable, strict=True) if s],
            [r for r, s in zip(results, differentiable, strict=True) if not s],
        )

    return flat, described


def _bridge(
    function: Callable[..., object], flat: FlatFunction, arrays: list[Array], inputs: list[int]
) -> Bridge:
    name = getattr(function, "__name__", type(function).__name__)
    where = placement.current()
    if arrays and not isinstance(arrays[0], jax.core.Tracer):
        where = arrays[0].sharding
    return Bridge(CompiledFunction(flat, avals_of(arrays), inputs, name=name), where)


def _rebuild(call: _Specialization, outputs: Sequence[Tensor], others: Sequence[Array]) -> object:
    """The function's result, with tensors for its arrays."""
    results = call.results
    first, second = iter(outputs), map(call.bridge.wrap, others)
    leaves = [next(first if d else second) for d in results.differentiable]
    return jax.tree.unflatten(results.structure, leaves)
