"""JAX functions in torch code: `call_jax` and `torch_view`.

In eager mode the function is one compiled program per signature, as under `jax.jit`, and one node of torch's autograd
graph. Globals and attributes that its Python code reads are guarded, as in captured code: if one has changed, the
function is retraced. Inside captured code it is traced together with the code around it. Where Dynamo traces, for
`torch.compile`, the call is one node of its graph, which calls the function when the graph runs. Transforms of torch
see one operator with JAX's rules (`in_transforms.py`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Sharding
from jax.tree_util import PyTreeDef

from ..base.ambient import of_jax
from ..base.naming import parameter_names, readable
from ..base.torch_dynamo import fake_mode, node_in_graph, without_fakes
from ..base.torch_private import differentiated_or_batched, records_operators, unwrap_if_dead
from ..capture.dependencies.guards import Guards
from ..capture.dependencies.open_recorders import users_only
from ..capture.dependencies.recorder import Recorder
from ..capture.signature import by_value
from ..dispatch.read import contiguous_array
from ..operators.bridge import Bridge, avals_of
from ..programs import tracing, width
from ..programs.compiled import CompiledFunction, FlatFunction
from ..programs.meshes import named_meshes
from ..programs.trees import Tree, is_tensor, split_jax
from ..storage import placement
from ..storage.buffer import buffer_of
from ..storage.dtypes import to_numpy, to_torch
from . import in_transforms

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

    It computes as in JAX: `jnp.arange(3)` in it has 32 bits, unless `jax_enable_x64` is set or one of the tensors has
    a dtype of 64 bits.

    Args:
        function: any JAX function of pytrees. A `jax.custom_vjp`, a Pallas kernel or a sharding constraint in it
            is preserved.
        *args: pytrees whose tensors become arrays of the same shape and dtype. Everything else is passed unchanged
            and is part of the signature: a new value causes a recompilation.
        **kwargs: keyword arguments, treated in the same way.

    Returns:
        The function's result, with tensors for its arrays; gradients of any order flow through them (`jax.vjp`).
        `torch.vmap` and the transforms of `torch.func` work as well.

    Raises:
        RuntimeError: a tensor is not on the jax device, or the call is in `torch.func.linearize`, which records only
            torch operators.
        TypeError: the function returns anything other than arrays and numbers.

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
    tensors = list(map(unwrap_if_dead, tensors))
    if records_operators():
        raise RuntimeError(
            "torch.func.linearize and make_fx record only torch operators, but the code calls the JAX function "
            f"{_name(function)}. Use torch.func.jvp, or call the JAX function outside."
        )
    if differentiated_or_batched(tensors):
        return in_transforms.call(call_jax, function, _tree_key(tree), tree, tensors)
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
    """Turn a JAX function into a torch function: `torch_view(f)(*args)` is `call_jax(f, *args)`.

    Args:
        function: a JAX function, as in `call_jax`.

    Returns:
        A function that takes and returns tensors. A call raises the errors of `call_jax`.

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
    if not all(map(mode.is_our_fake, tensors)):
        # AOTAutograd runs the graph again to record torch operators, and would record none for this node.
        raise RuntimeError(
            "this backend of torch.compile takes only torch operators, but the code calls the JAX function "
            f"{_name(function)}. Use backend='jax'."
        )
    _check_devices(tensors)
    wide = _is_wide(to_numpy(t.dtype) for t in tensors)
    flat, results = _flattened(function, _name(function), tree, wide)
    avals = [jax.ShapeDtypeStruct(tuple(map(int, t.shape)), to_numpy(t.dtype)) for t in tensors]
    with jax.enable_x64(True), without_fakes():
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
    return tensor.clone() if requires_grad else tensor  # the result of an operator is not a leaf


def _is_cacheable(function: Callable[..., object]) -> bool:
    """Whether a function can be the key of a cache: hashable, and weakly referenced."""
    try:
        hash(function)
        _caches.setdefault(function, {})
    except TypeError:
        return False
    return True


def _key(tree: Tree, arrays: list[Array]) -> Hashable:
    signatures = tuple((a.shape, a.dtype, a.sharding) for a in arrays)
    return of_jax(), *_tree_key(tree), signatures


def _tree_key(tree: Tree) -> tuple[Hashable, ...]:
    return tree.structure, tuple(tree.indices), tuple(map(by_value, tree.statics))


def _inlined(
    function: Callable[..., object], tree: Tree, arrays: list[Array], inputs: list[int]
) -> _Specialization:
    """The function as a part of the open trace."""
    wide = _is_wide(a.dtype for a in arrays)
    flat, results = _flattened(function, _name(function), tree, wide)
    return _Specialization(_bridge(function, flat, tree, arrays, inputs), results)


def _traced(
    function: Callable[..., object], tree: Tree, arrays: list[Array], inputs: list[int]
) -> _Specialization:
    """The function, traced once for all of its programs, while the values that it reads are recorded."""
    recorder = Recorder(function)
    wide = _is_wide(a.dtype for a in arrays)
    flat, results = _flattened(
        lambda *args, **kwargs: recorder.run(args, kwargs), _name(function), tree, wide
    )
    with width.of_torch(), placement.without_context_mesh():
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
    bridge = _bridge(function, replay, tree, arrays, inputs, named_meshes(jaxpr.jaxpr))
    return _Specialization(bridge, results, recorder.notes.build_guards(), read)


def _is_wide(dtypes: Iterable[np.dtype]) -> bool:
    """Whether a JAX function computes with 64 bits: by the user's setting, or because one of its arguments has them."""
    return width.of_user() or any(map(width.is_wide, dtypes))


def _flattened(
    function: Callable[..., object], name: str, tree: Tree, wide: bool
) -> tuple[FlatFunction, _Results]:
    """The function of the arrays alone, and the description of its results, which each of its runs fills in."""
    described = _Results()

    def results_of(*operands: Array) -> list[Array]:
        args, kwargs = tree.filled(operands)
        with users_only(), placement.for_user_code():
            leaves, structure = jax.tree.flatten(function(*args, **kwargs))
        results = [_as_array(leaf, name) for leaf in leaves]
        described.structure = structure
        described.differentiable = [bool(jnp.issubdtype(r.dtype, jnp.inexact)) for r in results]
        return results

    run = results_of if wide else width.narrow(results_of)

    def flat(*operands: Array) -> tuple[list[Array], list[Array]]:
        pairs = list(zip(run(*operands), described.differentiable, strict=True))
        return [r for r, s in pairs if s], [r for r, s in pairs if not s]

    return flat, described


def _as_array(leaf: object, name: str) -> Array:
    with suppress(TypeError, ValueError):
        return jnp.asarray(leaf)
    # Raised here, without the error of JAX as its context.
    raise TypeError(
        f"the JAX function {name} returns a value of type {type(leaf).__name__}, but its results must be arrays "
        "or numbers, in pytrees: return other values from the code that calls it"
    )


def _bridge(
    function: Callable[..., object],
    flat: FlatFunction,
    tree: Tree,
    arrays: list[Array],
    inputs: list[int],
    meshes: Sequence[Sharding] = (),
) -> Bridge:
    where = placement.current()
    if arrays and not isinstance(arrays[0], jax.core.Tracer):
        where = arrays[0].sharding
    compiled = CompiledFunction(
        flat,
        avals_of(arrays),
        inputs,
        name=_name(function),
        input_names=_input_names(function, tree, arrays),
        meshes=meshes,
    )
    return Bridge(compiled, where)


def _input_names(function: Callable[..., object], tree: Tree, arrays: Sequence[Array]) -> list[str]:
    """Names of the arrays for views: the function's parameters, with the path of each array within its parameter."""
    args, kwargs = tree.filled(arrays)
    named = [*zip(parameter_names(function, len(args)), args, strict=True), *sorted(kwargs.items())]
    paths = [
        readable(f"{name}{jax.tree_util.keystr(path)}")
        for name, value in named
        for path, _ in jax.tree_util.tree_flatten_with_path(value, is_leaf=_is_none)[0]
    ]
    return [paths[i] for i in tree.indices]


def _name(function: Callable[..., object]) -> str:
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def _is_none(leaf: object) -> bool:  # a leaf for `split_jax`, too
    return leaf is None


def _rebuild(call: _Specialization, outputs: Sequence[Tensor], others: Sequence[Array]) -> object:
    """The function's result, with tensors for its arrays."""
    results = call.results
    first, second = iter(outputs), map(call.bridge.wrap, others)
    leaves = [next(first if d else second) for d in results.differentiable]
    return jax.tree.unflatten(results.structure, leaves)
