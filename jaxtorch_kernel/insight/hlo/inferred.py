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

_PRODUCT_OPCODES = {"dot": "product", "convolution": "product", "dot_general": "product"}
_MOVES = frozenset(("transpose", "copy", "reverse", "reshape", "bitcast", "convert", "parameter"))
_SKIPPED = frozenset(
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


def infer_origins(module: Module, stablehlo: Callable[[], str | None]) -> Module:
    """The module with inferred origins. `stablehlo` is only called if there is a product to match."""
    sources = Sources(module)
    unlocated = [
        i
        for c in module.computations.values()
        if not c.fused
        for i in c.instructions
        if i.opcode not in _SKIPPED and not i.frame and sources.of(i) is None
    ]
    if not unlocated:
        return module
    products = [
        p for i in unlocated for p in (i, *module.inside(i)) if p.opcode in _PRODUCT_OPCODES
    ]
    matched = _match_products(module, products, stablehlo() or "") if products else {}
    origins = {number: _Origin(o.op_name, o.stack) for number, o in matched.items()}

    def origin_of(number: int) -> _Origin | None:
        instruction = module.instructions[number]
        if number in origins:
            return origins[number]
        if sources.of(instruction) is None:
            return next(
                (origins[i.id] for i in module.inside(instruction) if i.id in origins), None
            )
        if instruction.frame:
            return _Origin(instruction.op_name, module.stack(instruction.frame))
        inner = next(i for i in module.inside(instruction) if sources.of(i) is not None)
        return origin_of(inner.id)

    for order, neighbours in (
        (reversed(unlocated), lambda i: _readers(module, i)),
        (unlocated, lambda i: _sources(module, i)),
    ):
        for instruction in order:
            if origin_of(instruction.id) is None:
                origin = next(
                    (o for n in neighbours(instruction) if (o := origin_of(n)) is not None), None
                )
                if origin is not None:
                    origins[instruction.id] = origin
    return _replace_origins(module, origins)


def _readers(module: Module, instruction: Instruction) -> Iterator[int]:
    """The instructions that read a result, or a part of it."""
    for number in module.users.get(instruction.id, ()):
        reader = module.instructions[number]
        if reader.opcode == "get-tuple-element":
            yield from _readers(module, reader)
        else:
            yield number


def _sources(module: Module, instruction: Instruction) -> Iterator[int]:
    """The instructions whose results, or parts of them, an instruction reads."""
    for number in instruction.operands:
        source = module.instructions[number]
        if source.opcode == "get-tuple-element":
            yield from _sources(module, source)
        else:
            yield number


def _replace_origins(module: Module, origins: dict[int, _Origin]) -> Module:
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
    return Module(
        module.name,
        module.id,
        module.entry.id,
        computations,
        frames,
        frozenset(origins),
        module.aliases,
    )


# -- products -----------------------------------------------------------------------------------------------------


def _match_products(module: Module, products: list[Instruction], text: str) -> dict[int, _Origin]:
    """The origins of products without one, by instruction id."""
    located: Counter[tuple[str, _Product]] = Counter()
    for instruction in module.instructions.values():
        if instruction.opcode in _PRODUCT_OPCODES and instruction.frame:
            located[instruction.op_name, _product(module, instruction).size] += 1
    unmatched: list[tuple[_Product, _Origin]] = []
    for product, origin in _stablehlo_products(text):
        if located[origin.op_name, product.size]:
            located[origin.op_name, product.size] -= 1
        else:
            unmatched.append((product, origin))
    origins: dict[int, _Origin] = {}
    keys = {instruction.id: _product(module, instruction) for instruction in products}
    # First match the products that read the same arguments, then match the others by size.
    for key in (lambda p: p, lambda p: p.size):
        groups: defaultdict[_Product, list[_Origin]] = defaultdict(list)
        for product, origin in unmatched:
            groups[key(product)].append(origin)
        for instruction in products:
            candidates = groups[key(keys[instruction.id])]
            if instruction.id not in origins and candidates:
                origins[instruction.id] = candidates.pop(0)
        used = Counter(id(origin) for origin in origins.values())
        unmatched = [(p, o) for p, o in unmatched if id(o) not in used]
    return origins


def _product(module: Module, instruction: Instruction) -> _Product:
    operands = [module.instructions[n] for n in instruction.operands[:2]]
    sizes = tuple(sorted(o.shape.elements for o in operands))
    arguments = frozenset(n for o in operands for n in _arguments(module, o))
    return _Product(instruction.shape.elements, sizes, arguments)


def _arguments(module: Module, instruction: Instruction) -> Iterator[int]:
    """Yield the number of the program argument if the value is a moved or converted copy of one."""
    while True:
        if instruction.opcode == "parameter":
            if instruction.computation == module.entry.id:
                yield instruction.fields.get(9, 0)
                return
            callers = module.callers.get(instruction.computation, ())
            if len(callers) != 1 or not module.computations[instruction.computation].fused:
                return
            caller = module.instructions[callers[0]]
            instruction = module.instructions[caller.operands[instruction.fields.get(9, 0)]]
        elif instruction.opcode in _MOVES or (
            instruction.opcode == "fusion"
            and all(i.opcode in _MOVES for i in module.inside(instruction))
        ):
            if not instruction.operands:
                return
            instruction = module.instructions[instruction.operands[0]]
        else:
            return


_OPERATION = re.compile(r"\s*(%\w+) = stablehlo\.(\w+)[ (](.*)")
_NAME = re.compile(r"%[\w.$-]+")
_PARAMETER = re.compile(r"(%[\w.$-]+): tensor<")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)\w+(?:<\w+>)?>")


def _stablehlo_products(text: str) -> Iterator[tuple[_Product, _Origin]]:
    """The products in StableHLO, in order, with their origins."""
    lines, locations = Locations.of_text(text)
    copied_from: dict[str, str] = {}
    for line in lines:
        if "func.func" in line:
            copied_from = {}
            inputs_of_main = _PARAMETER.findall(line) if "@main" in line else []
        match = _OPERATION.match(line)
        if match is None:
            continue
        name, opcode, signature = match.groups()
        names = _NAME.findall(signature)[:2]
        if opcode in _MOVES and names:
            copied_from[name] = copied_from.get(names[0], names[0])
        if opcode not in _PRODUCT_OPCODES:
            continue
        types = _TENSOR.findall(signature[signature.rindex(" : ") :])
        sizes = [math.prod(map(int, sizes.split("x")[:-1])) for sizes in types]
        inputs = [copied_from.get(n, n) for n in names]
        arguments = frozenset(inputs_of_main.index(n) for n in inputs if n in inputs_of_main)
        product = _Product(sizes[-1], tuple(sorted(sizes[:2])), arguments)
        op_name, stack = locations.origin(line)
        yield product, _Origin(op_name, tuple(Frame(*frame) for frame in stack))
