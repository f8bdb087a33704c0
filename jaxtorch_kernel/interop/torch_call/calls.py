"""Torch functions over flat tensors, and the functions that JAX's transforms derive from them.

A `TorchCall` is what one `torch_call` equation runs. `UserFunction` is the user's function f. Its derivative at some
operands is a linear map J, from changes of some operands (`wrt`) to changes of some results (`outs`). Applying J or its
transpose is a call too:

    Pushforward(f, wrt, outs):  operands of f, tangents of wrt    -> J @ tangents      (jax.jvp)
    Pullback(f, wrt, outs):     operands of f, cotangents of outs -> cotangents @ J    (jax.vjp)

Each is the other's transpose, and each is linear in its last operands, so that its own tangent in them is itself.
`Batch(c)` runs c over a leading axis. Its derivatives are batches of c's derivatives. With these four, JAX's rules in
`primitive.py` hold for every order and every mix of grad, jvp and vmap.

Torch has two ways to compute a derivative. `torch.autograd.grad` supports every operator and every
`autograd.Function`, but only on plain tensors; `torch.func` supports nesting and batching. A pullback uses the former
unless it runs inside the latter (`nested`). What a function does not support is detected once and stored in its
`Traits`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import torch

from ...base.torch_private import over_batch
from ...programs.site import warn
from ...storage.dtypes import to_numpy, to_torch

if TYPE_CHECKING:
    from .running import CaughtErrors

Tensor = torch.Tensor
Aval = jax.ShapeDtypeStruct


@dataclass
class Traits:
    """Known properties of a torch function, shared by all calls that derive from it.

    Attributes:
        copies: the function writes to its arguments, or requests write access to their memory, so it receives copies.
        addresses: the function takes addresses of its arguments, and only reads there (`addresses.py`).
        forward_mode: torch has a forward derivative of every operator in it.
        loop: a batch makes one call for each element, as requested or because `torch.vmap` does not support it.
        seeded: whether each run draws the same random numbers.
        warned: whether the warning about random numbers without a key was issued.
    """

    name: str
    copies: bool = False
    addresses: bool = False
    forward_mode: bool = True
    loop: bool = False
    seeded: bool = False
    warned: bool = False


class TorchCall(ABC):
    """A torch function of flat tensors.

    Attributes:
        ins: shape and dtype of each operand.
        outs: shape and dtype of each result.
        linear_from: the index of the first linear operand. The call is linear in this and all later operands together,
            and can be transposed in them.
        traits: those of the user's function.
        is_derivative: whether it is a derivative of the user's function, or a batch of one.
        caught: stores errors for the Python caller.
    """

    ins: tuple[Aval, ...]
    outs: tuple[Aval, ...]
    linear_from: int
    traits: Traits
    is_derivative: bool = True
    caught: CaughtErrors | None = None

    @abstractmethod
    def run(self, operands: Sequence[Tensor], nested: bool) -> list[Tensor]:
        """The results. `nested`: the call is inside a transform of `torch.func`."""

    @abstractmethod
    def tangent(self, wrt: tuple[int, ...]) -> tuple[TorchCall, tuple[int, ...]]:
        """The call that computes the tangents of the inexact results.

        Also returns the indices of the operands that this call takes, before the tangents of `wrt`.
        """

    @abstractmethod
    def transpose(self, wrt: tuple[int, ...], outs: tuple[int, ...]) -> TorchCall:
        """The call from the cotangents of `outs` to those of `wrt`, which counts from `linear_from`."""

    @property
    def inexact(self) -> tuple[int, ...]:
        """The results that have tangents."""
        return tuple(i for i, out in enumerate(self.outs) if has_tangent(out))

    def __repr__(self) -> str:  # what a jaxpr shows
        return self.traits.name


def has_tangent(aval: Aval) -> bool:
    """Whether an array like this has tangents: its dtype is floating or complex."""
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


class UserFunction(TorchCall):
    """The user's function.

    Args:
        function: takes flat tensors and returns a list of leaves, which must be tensors.
        ins: shape and dtype of each argument.
        outs: shape and dtype of each result in JAX.
        traits: the known properties of the function.
    """

    def __init__(
        self,
        function: Callable[..., list[Tensor]],
        ins: Sequence[Aval],
        outs: Sequence[Aval],
        traits: Traits,
    ):
        self.function, self.ins, self.outs, self.traits = function, tuple(ins), tuple(outs), traits
        self.linear_from, self.is_derivative = len(self.ins), False
        self._expected = [(torch.Size(out.shape), to_torch(out.dtype)) for out in outs]

    def run(self, operands: Sequence[Tensor], nested: bool) -> list[Tensor]:
        if self.traits.copies:
            operands = [t.clone() for t in operands]
        results = self.function(*operands)
        if len(results) != len(self._expected):
            raise TypeError(
                f"{self.traits.name} returned {len(results)} tensors, but {len(self._expected)} were declared"
            )
        for i, (shape, dtype) in enumerate(self._expected):
            result = results[i]
            if type(result) is not Tensor or result.dtype != dtype or result.shape != shape:
                results[i] = self._checked(i, result)
        return results

    def _checked(self, i: int, result: object) -> Tensor:
        shape, dtype = self._expected[i]
        if not isinstance(result, Tensor):
            raise TypeError(
                f"{self.traits.name} returned a {type(result).__name__} where a tensor was declared (result {i}): "
                "JAX accepts only tensors. Return torch.as_tensor(value)."
            )
        narrowed = jax.dtypes.canonicalize_dtype(to_numpy(result.dtype)) == self.outs[i].dtype
        if result.shape != shape or not (result.dtype == dtype or narrowed):
            raise TypeError(
                f"{self.traits.name} returned {result.dtype}{list(result.shape)} where {dtype}{list(shape)} was "
                f"declared (result {i}). The shapes and dtypes of a JAX program are fixed: correct output_shapes=, or "
                "what the function returns."
            )
        return result.to(dtype)  # from 64 to 32 bits, if JAX is limited to 32

    def tangent(self, wrt: tuple[int, ...]) -> tuple[TorchCall, tuple[int, ...]]:
        return derived(Pushforward, self, wrt, self.inexact), tuple(range(len(self.ins)))

    def transpose(self, wrt: tuple[int, ...], outs: tuple[int, ...]) -> TorchCall:
        raise NotImplementedError("a torch function is not linear")


class _Linear(TorchCall):
    """The derivative of `inner`: a linear map from changes of operands `wrt` to changes of results `inner_outs`."""

    def __init__(self, inner: TorchCall, wrt: tuple[int, ...], outs: tuple[int, ...]):
        self.inner, self.wrt, self.inner_outs = inner, wrt, outs
        self.traits = inner.traits
        self.linear_from = len(inner.ins)
        self.wrt_avals = tuple(inner.ins[i] for i in wrt)
        self.out_avals = tuple(inner.outs[i] for i in outs)

    def function_of(
        self, operands: Sequence[Tensor], nested: bool
    ) -> Callable[..., tuple[Tensor, ...]]:
        """The results `inner_outs` as a function of the operands `wrt`."""

        def function(*changing: Tensor) -> tuple[Tensor, ...]:
            filled = list(operands)
            for i, tensor in zip(self.wrt, changing, strict=True):
                filled[i] = tensor
            results = self.inner.run(filled, nested)
            return tuple(results[i] for i in self.inner_outs)

        return function

    def tangent(self, wrt: tuple[int, ...]) -> tuple[TorchCall, tuple[int, ...]]:
        first = self.linear_from
        if wrt[0] >= first:  # linear in all of them: the tangent is the same map
            return self.restricted(tuple(i - first for i in wrt)), tuple(range(first))
        return derived(Pushforward, self, wrt, self.inexact), tuple(range(len(self.ins)))

    @abstractmethod
    def restricted(self, which: tuple[int, ...]) -> TorchCall:
        """The same map, restricted to these of its linear operands."""


class Pushforward(_Linear):
    """`J @ tangents`."""

    def __init__(self, inner: TorchCall, wrt: tuple[int, ...], outs: tuple[int, ...]):
        super().__init__(inner, wrt, outs)
        self.ins, self.outs = inner.ins + self.wrt_avals, self.out_avals

    def run(self, operands: Sequence[Tensor], nested: bool) -> list[Tensor]:
        primals, tangents = operands[: self.linear_from], tuple(operands[self.linear_from :])
        changing = tuple(primals[i] for i in self.wrt)
        if self.traits.forward_mode:
            try:
                return list(torch.func.jvp(self.function_of(primals, True), changing, tangents)[1])
            except Exception:
                # There is no forward formula, or the function has an error, which the other way raises again.
                results = self._by_two_pullbacks(primals, changing, tangents, nested)
                self.traits.forward_mode = False
                return results
        return self._by_two_pullbacks(primals, changing, tangents, nested)

    def _by_two_pullbacks(
        self,
        primals: Sequence[Tensor],
        changing: tuple[Tensor, ...],
        tangents: tuple[Tensor, ...],
        nested: bool,
    ) -> list[Tensor]:
        """The pushforward as the pullback of the pullback, which is linear in its cotangents."""
        function = self.function_of(primals, nested)
        if nested:
            results, pull = _vjp(function, changing)
            zeros = tuple(torch.zeros_like(r) for r in results)
            return list(_vjp(lambda *cotangents: pull(cotangents), zeros)[1](tangents))
        with torch.enable_grad():
            xs = [_leaf(x) for x in changing]
            results = function(*xs)
            cotangents = [torch.zeros_like(r, requires_grad=True) for r in results]
            pulled = _grad(results, xs, cotangents, create_graph=True)
            return _grad(
                pulled, cotangents, list(tangents), create_graph=_is_recorded([*primals, *tangents])
            )

    def transpose(self, wrt: tuple[int, ...], outs: tuple[int, ...]) -> TorchCall:
        return derived(Pullback, self.inner, _pick(self.wrt, wrt), _pick(self.inner_outs, outs))

    def restricted(self, which: tuple[int, ...]) -> TorchCall:
        return derived(Pushforward, self.inner, _pick(self.wrt, which), self.inner_outs)

    def __repr__(self) -> str:
        return f"jvp({self.inner!r})"


class Pullback(_Linear):
    """`cotangents @ J`, as JAX defines it: torch conjugates complex derivatives, JAX does not."""

    def __init__(self, inner: TorchCall, wrt: tuple[int, ...], outs: tuple[int, ...]):
        super().__init__(inner, wrt, outs)
        self.ins, self.outs = inner.ins + self.out_avals, self.wrt_avals

    def run(self, operands: Sequence[Tensor], nested: bool) -> list[Tensor]:
        primals = operands[: self.linear_from]
        cotangents = [t.conj() for t in operands[self.linear_from :]]  # of a real tensor: itself
        changing = [primals[i] for i in self.wrt]
        function = self.function_of(primals, nested)
        pulled: Sequence[Tensor]
        if nested:
            pulled = _vjp(function, changing)[1](tuple(cotangents))
        else:
            with torch.enable_grad():
                xs = [_leaf(x) for x in changing]
                pulled = _grad(function(*xs), xs, cotangents, create_graph=_is_recorded(operands))
        return [t.conj() for t in pulled]

    def transpose(self, wrt: tuple[int, ...], outs: tuple[int, ...]) -> TorchCall:
        return derived(Pushforward, self.inner, _pick(self.wrt, outs), _pick(self.inner_outs, wrt))

    def restricted(self, which: tuple[int, ...]) -> TorchCall:
        return derived(Pullback, self.inner, self.wrt, _pick(self.inner_outs, which))

    def __repr__(self) -> str:
        return f"vjp({self.inner!r})"


class Batch(TorchCall):
    """A call over a leading axis of all results and of the marked operands."""

    def __init__(self, inner: TorchCall, size: int, marked: tuple[bool, ...]):
        self.inner, self.size, self.marked = inner, size, marked
        self.traits, self.linear_from, self.is_derivative = (
            inner.traits,
            inner.linear_from,
            inner.is_derivative,
        )
        self.ins = tuple(
            _batched(a, size) if m else a for a, m in zip(inner.ins, marked, strict=True)
        )
        self.outs = tuple(_batched(a, size) for a in inner.outs)

    def run(self, operands: Sequence[Tensor], nested: bool) -> list[Tensor]:
        if self.traits.loop:
            return self._by_loop(operands, nested)
        try:
            return over_batch(
                lambda tensors: self.inner.run(tensors, True), self.size, operands, self.marked
            )
        except Exception as error:  # if it is an error of the function, the loop raises it again
            results = self._by_loop(operands, nested)
            self.traits.loop = True
            # `torch.vmap` cannot batch a seeded function, because each element has a seed of its own.
            if not self.traits.seeded:
                warn(
                    f"jax.vmap calls {self.traits.name} once for each of {self.size} elements: torch.vmap cannot "
                    f"batch it ({_first_line(error)})",
                )
            return results

    def _by_loop(self, operands: Sequence[Tensor], nested: bool) -> list[Tensor]:
        if not self.size:
            return [torch.zeros(out.shape, dtype=to_torch(out.dtype)) for out in self.outs]
        one_by_one = [
            self.inner.run(
                [t[i] if m else t for t, m in zip(operands, self.marked, strict=True)], nested
            )
            for i in range(self.size)
        ]
        return [torch.stack(results) for results in zip(*one_by_one, strict=True)]

    def tangent(self, wrt: tuple[int, ...]) -> tuple[TorchCall, tuple[int, ...]]:
        inner, operands = self.inner.tangent(wrt)
        marked = tuple(self.marked[i] for i in operands) + (True,) * len(wrt)
        return derived(Batch, inner, self.size, marked), operands

    def transpose(self, wrt: tuple[int, ...], outs: tuple[int, ...]) -> TorchCall:
        marked = self.marked[: self.linear_from] + (True,) * len(outs)
        return derived(Batch, self.inner.transpose(wrt, outs), self.size, marked)

    def __repr__(self) -> str:
        return f"vmap({self.inner!r})"


def derived(kind: Callable[..., TorchCall], inner: TorchCall, *arguments: object) -> TorchCall:
    """`kind(inner, *arguments)`: one object per arguments, stored with `inner`, so that each is compiled once."""
    known: dict[tuple[object, ...], TorchCall] = inner.__dict__.setdefault("_derived", {})
    key = (kind, *arguments)
    if key not in known:
        known[key] = kind(inner, *arguments)
    return known[key]


def _vjp(
    function: Callable[..., tuple[Tensor, ...]], xs: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], Callable[..., tuple[Tensor, ...]]]:
    results, pull, *_ = torch.func.vjp(function, *xs)
    return results, pull


def _pick(items: tuple[int, ...], which: Sequence[int]) -> tuple[int, ...]:
    return tuple(items[i] for i in which)


def _batched(aval: Aval, size: int) -> Aval:
    return Aval((size, *aval.shape), aval.dtype)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


def _is_recorded(tensors: Sequence[Tensor]) -> bool:
    """Whether a derivative of these tensors will be taken, outside of this one."""
    return any(t.requires_grad for t in tensors)


def _grad(
    results: Sequence[Tensor],
    xs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    create_graph: bool,
) -> list[Tensor]:
    """`torch.autograd.grad`, with zeros for each of `xs` that no result depends on."""
    reached = [(r, ct) for r, ct in zip(results, cotangents, strict=True) if r.requires_grad]
    if not reached:
        return [torch.zeros_like(x) for x in xs]
    outputs, seeds = zip(*reached, strict=True)
    return list(
        torch.autograd.grad(
            outputs, xs, seeds, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]
