"""Python numbers that vary from call to call, in the form that captured code gets: `self.step`, `config["scale"]`.

A number that captured code reads is guarded at first. If another value of it causes a retrace, the code gets a
`HostNumber` in its place. Arithmetic on it is Python's own, and is recorded as a `Formula`; before each run the formula
is evaluated with the current numbers. What the code then uses the result for decides the rest:

    with a tensor (`x * n`)                a 0-dim operand of the program, which gets the value of the formula
    in a comparison, in a branch           a check that the comparison still has the same result
    assigned again (`self.step += 1`)      each run assigns the value of the formula
    anything else (`range(n)`, `x[n]`)     a check that the number is the same, as if it had a guard

So a program never depends on a number without a check. If the trace fails, for instance because C code accepts only
Python's own numbers, the function is traced with these instead. `host_numbers.py` has what belongs to one trace.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import torch

from ...base.replaced import Replaced

Tensor = torch.Tensor
Scalar: TypeAlias = int | float
# An operand of a Python operator: a number, a HostNumber, a tensor, an object with operators of its own.
Term: TypeAlias = Any
Function: TypeAlias = Callable[..., Term]

_KINDS = (int, float, np.float64)
_MAX_DEPTH = 200  # of formulas
_ERRORS = (ArithmeticError, ValueError)  # what arithmetic raises


class Formula:
    """How a number is computed: by a function of other formulas. One without parts reads the number from a slot.

    Attributes:
        depth: of the tree of formulas.
    """

    __slots__ = ("depth", "function", "parts")

    def __init__(self, function: Function, parts: Sequence[Formula | Scalar]):
        self.function, self.parts = function, parts
        depths = [part.depth for part in parts if isinstance(part, Formula)]
        self.depth: int = 1 + max(depths, default=0)

    def value(self, known: dict[int, Term]) -> Term:
        """The current value. `known`: those of formulas that have been evaluated already, by identity."""
        if id(self) not in known:
            known[id(self)] = self.function(
                *[part.value(known) if isinstance(part, Formula) else part for part in self.parts]
            )
        return known[id(self)]


class Owner(Protocol):
    """The trace that a HostNumber belongs to (`host_numbers.py`)."""

    def is_open(self) -> bool:
        """Whether the trace runs, in this thread."""

    def add(self, formula: Formula) -> None:
        """Require that a formula can be computed at each run, even if nothing uses it: the code may catch its error."""

    def operand(self, number: HostNumber, dtype: torch.dtype) -> Tensor:
        """The operand for a number."""

    def require(self, formula: Formula, value: object, is_outcome: bool = False) -> None:
        """Require that a formula has this value at each run. `is_outcome`: it is the result of a comparison."""


class HostNumber:
    """A Python number that varies. After its trace, and in other threads, its operators return Python numbers."""

    __slots__ = ("formula", "trace", "value")

    def __init__(self, trace: Owner, value: Scalar, formula: Formula):
        self.trace, self.value, self.formula = trace, value, formula

    @classmethod
    def __torch_function__(
        cls,
        function: Function,
        types: Sequence[type],
        args: Sequence[Term] = (),
        kwargs: dict[str, Term] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        dtypes = {a.dtype for a in args if isinstance(a, Tensor)}
        name = getattr(function, "__name__", "")
        if len(dtypes) == 1 and not kwargs:
            (dtype,) = dtypes
            # torch computes `x ** 2` by a product, and `2 ** x` as for a tensor.
            takes = name in _TAKES_TENSOR or (name in _POWERS and type(args[0]) is HostNumber)
            if (takes and dtype in _EXACT) or (name in _SUMS and dtype in _HALVES):
                return function(*[a.operand(dtype) if type(a) is HostNumber else a for a in args])
            if name in _PRODUCTS and dtype in _HALVES:
                wide = [
                    a.operand(torch.float32) if type(a) is HostNumber else a.float() for a in args
                ]
                return function(*wide).to(dtype)
        return _with_values(function, args, kwargs)

    def __array_ufunc__(
        self, function: Function, method: str, *terms: Term, **options: Term
    ) -> Term:
        if method == "__call__" and not options and all(map(_is_number, terms)):
            return _computed(function, *terms)
        return getattr(function, method)(*map(_fixed, terms), **options)

    def operand(self, dtype: torch.dtype) -> Tensor | Scalar:
        """The 0-dim tensor that a program takes in place of the number."""
        return self.trace.operand(self, dtype) if self.trace.is_open() else self.value

    def fixed(self) -> Scalar:
        """The number itself: the program is valid only for this value."""
        if self.trace.is_open():
            self.trace.require(self.formula, self.value)
        return self.value

    def __getattr__(self, name: str) -> object:  # an attribute of Python's numbers
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.fixed(), name)

    @property  # type: ignore[misc]  # `object` has a setter too
    def __class__(self) -> type:  # read by `isinstance`
        return type(self.value)

    def __copy__(self) -> HostNumber:
        return self

    def __deepcopy__(self, memo: object) -> HostNumber:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a number in captured code cannot be pickled")


def holds_host_number(value: Term, depth: int = 4) -> bool:
    """Whether a HostNumber is in a value: in a container, or among the attributes of an object."""
    if type(value) is HostNumber:
        return True
    if not depth or isinstance(value, str | Tensor | torch.nn.Module):
        return False
    if isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts = list(value)
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    return any(holds_host_number(part, depth - 1) for part in parts)


# -- arithmetic -----------------------------------------------------------------------------------------------


def _fixed(term: Term) -> Term:
    return term.fixed() if type(term) is HostNumber else term


def _with_values(function: Function, args: Sequence[Term], kwargs: dict[str, Term]) -> Term:
    """The result of a function that gets the numbers themselves."""
    return function(*map(_fixed, args), **{k: _fixed(v) for k, v in kwargs.items()})


def value_of(term: Term) -> Term:
    """A number for a HostNumber; any other value as it is."""
    return term.value if type(term) is HostNumber else term


def _formula(function: Function, terms: Sequence[Term]) -> Formula:
    return Formula(function, [t.formula if type(t) is HostNumber else t for t in terms])


def _computed(function: Function, *terms: Term) -> Term:
    """The result of a function of numbers, one of which is a HostNumber, as a HostNumber."""
    trace = next(t for t in terms if type(t) is HostNumber).trace
    values = list(map(value_of, terms))
    if not trace.is_open():
        return function(*values)
    try:
        value = function(*values)
    except _ERRORS:  # the code may catch it
        error_of = functools.partial(_error_of, function)
        trace.require(_formula(error_of, terms), error_of(*values), is_outcome=True)
        raise
    formula = _formula(function, terms)
    if type(value) not in _KINDS or formula.depth > _MAX_DEPTH:  # a complex number; a long loop
        return function(*map(_fixed, terms))
    if function not in _NEVER_FAIL:
        trace.add(formula)
    if function is operator.pow:  # an int to a negative power is a float
        trace.require(Formula(type, [formula]), type(value), is_outcome=True)
    return HostNumber(trace, value, formula)


def _error_of(function: Function, *values: Scalar) -> str:
    try:
        function(*values)
    except _ERRORS as error:
        return str(error)
    return ""


def _outcome(function: Function, *terms: Term) -> Term:
    """The result of a comparison, on which the program depends."""
    trace = next(t for t in terms if type(t) is HostNumber).trace
    result = function(*map(value_of, terms))
    if trace.is_open():
        trace.require(_formula(function, terms), result, is_outcome=True)
    return result


def _is_number(term: object) -> bool:
    return type(term) in (HostNumber, bool, *_KINDS)


def _with_tensor(function: Function, *terms: Term) -> Term:
    # Not by the operator, which would call the method of the HostNumber again.
    return HostNumber.__torch_function__(getattr(torch, _OF_TORCH[function]), (), terms)


def _operator(function: Function, result: Function, is_reflected: bool = False) -> Function:
    """A method of HostNumber for a Python operator; `result` computes it for numbers."""

    def method(self: HostNumber, other: Term) -> Term:
        pair = (other, self) if is_reflected else (self, other)
        if _is_number(other) or (result is _outcome and not isinstance(other, Tensor)):
            return result(function, *pair)
        if isinstance(other, Tensor) and function in _OF_TORCH:
            return _with_tensor(function, *pair)
        return function(*map(_fixed, pair))

    return method


# Python's operators, and torch's functions for a number and a tensor.
_ARITHMETIC: dict[Function, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "true_divide",
    operator.floordiv: "floor_divide",
    operator.mod: "remainder",
    operator.pow: "pow",
}
_OF_INTEGERS: tuple[Function, ...] = (
    operator.and_,
    operator.or_,
    operator.xor,
    operator.lshift,
    operator.rshift,
)
_NEVER_FAIL = (operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs)
_COMPARISONS: dict[Function, str] = {
    getattr(operator, name): name for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_OF_TORCH = _ARITHMETIC | _COMPARISONS
_UNARY: tuple[Function, ...] = (
    operator.neg,
    operator.invert,
    operator.pos,
    abs,
    round,
    math.floor,
    math.ceil,
    math.trunc,
)
_BY_VALUE: tuple[Function, ...] = (
    int,
    float,
    complex,
    hash,
    str,
    repr,
    format,
    operator.index,
)


def _function(function: Function) -> Function:
    """A method for a function of numbers."""
    return lambda self, *others: _computed(function, self, *others)


def _by_value(function: Function) -> Function:
    """A method for a function that needs the value."""
    return lambda self, *others: function(self.fixed(), *map(_fixed, others))


def _methods() -> dict[str, Function]:
    """The methods of HostNumber for Python's operators and functions of numbers."""
    methods: dict[str, Function] = {}
    for function in (*_ARITHMETIC, *_OF_INTEGERS):
        name = function.__name__.rstrip("_")
        methods[name] = _operator(function, _computed)
        methods[f"r{name}"] = _operator(function, _computed, is_reflected=True)
    methods |= {f.__name__: _operator(f, _outcome) for f in _COMPARISONS}
    methods |= {f.__name__: _function(f) for f in _UNARY}
    methods |= {f.__name__: _by_value(f) for f in _BY_VALUE}
    methods["divmod"] = lambda self, other: (self // other, self % other)
    methods["rdivmod"] = lambda self, other: (other // self, other % self)
    methods["array"] = _by_value(lambda value, *_: np.array(value))
    methods["bool"] = lambda self: _outcome(bool, self)
    return methods


for _name, _method in _methods().items():
    setattr(HostNumber, f"__{_name}__", _method)

# -- torch and `math` -----------------------------------------------------------------------------------------


def _variants(*names: str) -> set[str]:
    """The names of a function's other forms: methods, in place, reflected."""
    return {
        form
        for name in names
        for form in (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__")
    }


# torch's functions that compute with a 0-dim tensor as with a Python number, if all tensors have the same dtype.
_SUMS = _variants("add", "sub", "subtract") | {"rsub"}
_PRODUCTS = {"mul", "__mul__", "__rmul__", "multiply", "div", "__truediv__"}
_TAKES_TENSOR = _SUMS | _variants("mul", "div", "truediv", "true_divide", "multiply", "divide")
_TAKES_TENSOR |= _variants(*_COMPARISONS.values()) | {"lerp", "lerp_"}
_POWERS = {"pow", "__rpow__"}
# The CPU, too, rounds a number to one of these dtypes before it uses the number.
_EXACT = {torch.float32, torch.float64}
# With these it rounds a number that is added. It multiplies and divides in float32.
_HALVES = {torch.bfloat16, torch.float16}

_MATH = (
    "sqrt",
    "exp",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "pow",
    "cos",
    "sin",
    "tan",
    "tanh",
)
# The parameters by which methods of tensors multiply their first argument.
_SCALES = dict.fromkeys(("add", "add_", "sub", "sub_"), "alpha")
_SCALES |= dict.fromkeys(("addcdiv", "addcdiv_", "addcmul", "addcmul_"), "value")


_FACTORIES = ("tensor", "as_tensor", "scalar_tensor", "full", "full_like")


def _of_math(function: Function) -> Function:
    @functools.wraps(function)
    def call(*args: Term) -> Term:
        return _computed(function, *args) if HostNumber in map(type, args) else function(*args)

    return call


def _of_values(function: Function) -> Function:
    @functools.wraps(function)
    def call(*args: Term, **kwargs: Term) -> Term:
        if HostNumber in map(type, args) or HostNumber in map(type, kwargs.values()):
            return _with_values(function, args, kwargs)
        return function(*args, **kwargs)

    return call


def _scaled(method: Function, scale: str) -> Function:
    @functools.wraps(method)
    def call(self: Tensor, *args: Term, **kwargs: Term) -> Term:
        if args and type(kwargs.get(scale)) is HostNumber:
            args = (args[0] * kwargs.pop(scale), *args[1:])
        return method(self, *args, **kwargs)

    return call


# The functions of modules that are replaced below. No guard may expect them.
OF_MODULES: dict[object, tuple[str, ...]] = {math: _MATH, torch: _FACTORIES}
# Functions written in C that take HostNumbers while captured code runs.
replaced = Replaced(
    *((math, name, _of_math(getattr(math, name))) for name in _MATH),
    *((torch, name, _of_values(getattr(torch, name))) for name in _FACTORIES),
    *((Tensor, name, _scaled(getattr(Tensor, name), scale)) for name, scale in _SCALES.items()),
)
