"""Infers the origin of instructions that XLA left without one.

When XLA rewrites a convolution (above all in gradients on the CPU) or changes a layout, it creates new instructions
without metadata. In a residual network they make up nearly all of the backward pass.

* A product (a convolution, a `dot`) is matched with a product of the StableHLO, where every operation still has its
  line. Products that already belong to an instruction are excluded. Result and operands must have the same numbers of
  elements. Products that read the same program arguments are matched first. If several match, they are taken in order.
* Any other instruction, such as a copy or a transpose, gets the origin of its consumer, or else of its operand.

Both rules are usually right, but the result is a guess. `Module.inferred` lists the instructions with a guessed origin.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from .listing import Locations
from .module import Frame, Instruction, Module
from .source import Sources

_PRODUCTS = {"dot": "product", "convolution": "product", "dot_general": "product"}
_MOVES = frozenset(("transpose", "copy", "reverse", "reshape", "bitcast", "convert", "parameter"))
_SILENT = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "while", "call", "conditional")
)


class _Origin(NamedTuple):
    op_name: str
    stack: tuple[Frame, ...]


class _Product(NamedTuple):
    """The key of a product: the numbers of elements of result and operands, and the program arguments it reads."""

    result: int
    operands: tuple[int, ...]
    arguments: frozenset[int]

    @property
    def size(self) -> _Product:
        """The key without the arguments."""
        return self._replace(arguments=frozenset())


def found_again(module: Module, stablehlo: Callable[[], str | None]) -> Module:
    """The module with inferred origins. `stablehlo` is only called if there is a product to match."""
    sources = Sources(module)
    lost = [
        i
        for c in module.computations.values()
        if not c.fused
        for i in c.instructions
        if i.opcode not in _SILENT and not i.frame and sources.of(i) is None
    ]
    if not lost:
        return module
    products = [p for i in lost for p in (i, *module.inside(i)) if p.opcode in _PRODUCTS]
    found = _products(module, products, stablehlo() or "") if products else {}
    origins = {number: _Origin(o.op_name, o.stack) for number, o in found.items()}

    def of(number: int) -> _Origin | None:
        own = module.instructions[number]
        if number in origins:
            return origins[number]
        if sources.of(own) is None:
            return next((origins[i.id] for i in module.inside(own) if i.id in origins), None)
        if own.frame:
            return _Origin(own.op_name, module.stack(own.frame))
        inner = next(i for i in module.inside(own) if sources.of(i) is not None)
        return of(inner.id)

    users = module.users
    for order, around in (
        (reversed(lost), lambda i: users.get(i.id, ())),
        (lost, lambda i: i.operands),
    ):
        for instruction in order:
            if of(instruction.id) is None:
                near = next((o for n in around(instruction) if (o := of(n)) is not None), None)
                if near is not None:
                    origins[instruction.id] = near
    return _with(module, origins)


def _with(module: Module, origins: dict[int, _Origin]) -> Module:
    """A copy of a module with new origins for some instructions."""
    frames = list(module._frames)
    numbers: dict[tuple[Frame, ...], int] = {(): 0}

    def number_of(stack: tuple[Frame, ...]) -> int:
        if stack not in numbers:
            parent = number_of(stack[1:])
            frames.append((stack[0], parent))
            numbers[stack] = len(frames)
        return numbers[stack]

    computations = []
    for computation in module.computations.values():
        instructions = tuple(
            replace(i, op_name=origins[i.id].op_name, frame=number_of(origins[i.id].stack))
            if i.id in origins
            else i
            for i in computation.instructions
        )
        computations.append(replace(computation, instructions=instructions))
    return Module(module.name, module.id, module.entry.id, computations, frames, frozenset(origins))


# -- products -----------------------------------------------------------------------------------------------------


def _products(module: Module, lost: list[Instruction], text: str) -> dict[int, _Origin]:
    """The origins of the lost products, by instruction id."""
    standing: Counter[tuple[str, _Product]] = Counter()
    for own in module.instructions.values():
        if own.opcode in _PRODUCTS and own.frame:
            standing[own.op_name, _product(module, own).size] += 1
    free: list[tuple[_Product, _Origin]] = []
    for product, origin in _written(text):
        if standing[origin.op_name, product.size]:
            standing[origin.op_name, product.size] -= 1
        else:
            free.append((product, origin))
    found: dict[int, _Origin] = {}
    wanted = {own.id: _product(module, own) for own in lost}
    # First match the products that read the same arguments, then match the rest by size.
    for key in (lambda p: p, lambda p: p.size):
        groups: defaultdict[_Product, list[_Origin]] = defaultdict(list)
        for product, origin in free:
            groups[key(product)].append(origin)
        for own in lost:
            fitting = groups[key(wanted[own.id])]
            if own.id not in found and fitting:
                found[own.id] = fitting.pop(0)
        taken = Counter(id(origin) for origin in found.values())
        free = [(p, o) for p, o in free if id(o) not in taken]
    return found


def _product(module: Module, own: Instruction) -> _Product:
    operands = [module.instructions[n] for n in own.operands[:2]]
    sizes = tuple(sorted(o.shape.elements for o in operands))
    arguments = frozenset(n for o in operands for n in _arguments(module, o))
    return _Product(own.shape.elements, sizes, arguments)


def _arguments(module: Module, own: Instruction) -> Iterator[int]:
    """Yield the number of the program argument if the value is a moved or converted copy of one."""
    while True:
        if own.opcode == "parameter":
            if own.computation == module.entry.id:
                yield own.fields.get(9, 0)
                return
            callers = module.callers.get(own.computation, ())
            if len(callers) != 1 or not module.computations[own.computation].fused:
                return
            caller = module.instructions[callers[0]]
            own = module.instructions[caller.operands[own.fields.get(9, 0)]]
        elif own.opcode in _MOVES or (
            own.opcode == "fusion" and all(i.opcode in _MOVES for i in module.inside(own))
        ):
            if not own.operands:
                return
            own = module.instructions[own.operands[0]]
        else:
            return


_OPERATION = re.compile(r"\s*(%\w+) = stablehlo\.(\w+)[ (](.*)")
_NAME = re.compile(r"%\w+")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)\w+(?:<\w+>)?>")


def _written(text: str) -> Iterator[tuple[_Product, _Origin]]:
    """The products in StableHLO, in order, with their origins."""
    lines, locations = Locations.of_text(text)
    from_argument: dict[str, str] = {}
    for line in lines:
        if "func.func" in line:
            from_argument = {}
            main = "@main" in line
        match = _OPERATION.match(line)
        if match is None:
            continue
        name, opcode, rest = match.groups()
        names = _NAME.findall(rest)[:2]
        if opcode in _MOVES and names:
            from_argument[name] = from_argument.get(names[0], names[0])
        if opcode not in _PRODUCTS:
            continue
        types = _TENSOR.findall(rest[rest.rindex(" : ") :])
        sizes = [math.prod(map(int, sizes.split("x")[:-1])) for sizes in types]
        ends = [from_argument.get(n, n) for n in names]
        arguments = frozenset(int(e[4:]) for e in ends if main and re.fullmatch(r"%arg\d+", e))
        product = _Product(sizes[-1], tuple(sorted(sizes[:2])), arguments)
        op_name, stack = locations.at_end(line)
        yield product, _Origin(op_name, tuple(Frame(*frame) for frame in stack))
