"""Python numbers and strings among the arguments change: the code sees a number and not a tensor."""

from __future__ import annotations

from .harness import Row

_TABLE = "table = {1: 10, 2: 20, 3: 30}\n"
_CLASS = "class C:\n    def __init__(self, k):\n        self.k = k\n    def f(self, x):\n        return x * self.k\n"

# What it is, the argument's values one after another, and what the code makes of it.
NUMBERS = [
    ("a factor", ("2", "3", "4", "2"), "x * k"),
    ("a float", ("2.0", "2.5", "3.5"), "x * k"),
    ("a power of two", ("2", "3", "5"), "x * 2 ** k"),
    ("a negative power", ("2", "-1", "-2"), "x * 2 ** k"),
    ("isinstance", ("2", "3", "4"), "x * 2 if isinstance(k, int) else x"),
    ("type", ("2", "3", "4"), "x * 2 if type(k) is int else x"),
    ("type of a float", ("2.0", "3.0", "4.0"), "x * 2 if type(k) is float else x"),
    ("in a set", ("2", "3", "4"), "x * 2 if k in {2, 4} else x"),
    ("in a tuple", ("2", "3", "4"), "x * 2 if k in (2, 4) else x"),
    ("a dictionary's get", ("1", "2", "3", "4"), "x * table.get(k, 7)"),
    ("a dictionary's item", ("1", "2", "3"), "x * table[k]"),
    ("beyond 64 bits", ("2**31", "2**32", "2**33"), "x * float(k * k % 1_000_003)"),
    ("far beyond 64 bits", ("2**62", "2**63", "2**64"), "x * (k % 1_000_003)"),
    ("exact beyond a double", ("2**53", "2**53 + 1", "2**53 + 3"), "torch.tensor([k]) + (x.long() * 0)[:1]"),
    ("the sign of zero", ("1.0", "0.0", "-0.0"), "x * math.copysign(1, k)"),
    ("the sign of zero, by torch", ("1.0", "0.0", "-0.0"), "torch.copysign(x, torch.tensor(k))"),
    ("nan", ("1.0", "math.nan", "2.0"), "x if k != k else x * k"),
    ("inf", ("1.0", "math.inf", "-math.inf"), "x.clamp(max=k)"),
    ("1 and 1.0", ("1", "1.0", "1"), "x.long() * k"),
    ("1 and True", ("1", "True", "1"), "x * 2 if k is True else x"),
    ("0 and False", ("0", "False", "0"), "x * 2 if k is False else x"),
    ("1, 1.0 and True", ("True", "1.0", "1", "2", "2.0"), "x * len(str(k))"),
    ("a bool", ("True", "False", "True"), "x if k else -x"),
    ("promotion with int8", ("2", "3", "4"), "x.to(torch.int8) * k"),
    ("promotion of an int tensor with a float", ("2", "2.5", "3.5"), "x.long() * k"),
    ("promotion of float16 with a float", ("2.0", "2.5", "3.5"), "x.half() * k"),
    ("promotion of float64 with a float", ("0.1", "0.2", "0.3"), "x.double() * k"),
    ("promotion of bool with an int", ("2", "3", "4"), "(x > 0) * k"),
    ("promotion of a 0-dim tensor", ("2", "3", "4"), "x.to(torch.int8)[0] * k"),
    ("a float beside a 0-dim float16", ("2.0", "3.0", "0.1"), "x.half()[0] * k"),
    ("torch.tensor of it", ("2", "3", "4"), "torch.tensor(k) + x[0].long()"),
    ("torch.full", ("2", "3", "4"), "torch.full((2,), k) + x[:2].long()"),
    ("torch.result_type", ("2", "3", "4.0"), "x.to(torch.result_type(x.half(), k))"),
    ("integer division", ("2", "3", "5"), "x * (7 // k) + 7 % k"),
    ("integer division, negative", ("2", "-3", "-5"), "x * (7 // k) + 7 % k"),
    ("true division of ints", ("3", "7", "9"), "x * (1 / k)"),
    ("division in double precision", ("3.0", "7.0", "9.0"), "x.double() * (1 / k)"),
    ("round", ("2.4", "2.5", "3.5"), "x * round(k)"),
    ("int()", ("2.4", "3.9", "-3.9"), "x * int(k)"),
    ("math.sqrt", ("2.0", "3.0", "5.0"), "x * math.sqrt(k)"),
    ("math.floor", ("2.4", "3.9", "-3.9"), "x * math.floor(k)"),
    ("bit operations", ("5", "6", "12"), "x * ((k & 6) | (k << 1) ^ 3)"),
    ("bit_length", ("5", "6", "12"), "x * k.bit_length()"),
    ("is_integer", ("2.0", "2.5", "3.0"), "x * 2 if k.is_integer() else x"),
    ("a comparison", ("1", "2", "3"), "x * 2 if k > 1 else x"),
    ("a chain of comparisons", ("1", "2", "3"), "x * 2 if 1 < k < 3 else x"),
    ("range", ("1", "2", "3"), "sum((x * i for i in range(k)), x)"),
    ("an index", ("0", "1", "2"), "x * x[k]"),
    ("a slice", ("1", "2", "3"), "x[:k] * 2"),
    ("a shape", ("1", "2", "4"), "x.reshape(k, -1) * 2"),
    ("a dimension", ("0", "1", "-1"), "x.reshape(2, 2).sum(k)"),
    ("a list's multiple", ("1", "2", "3"), "x + sum([2] * k)"),
    ("a string of it", ("1", "12", "123"), "x * len(f'{k}')"),
    ("hash and equality", ("1", "2", "3"), "x * (hash(k) + (k == 2))"),
    ("max and min", ("1", "2", "3"), "x * max(k, 2) + min(k, 2)"),
    ("sum and abs", ("1", "-2", "3"), "x * abs(k) + sum((k, k))"),
    ("divmod and pow", ("2", "3", "5"), "x * divmod(7, k)[1] + pow(k, 2, 5)"),
    ("an object that keeps it", ("1", "2", "3"), "C(k).f(x)"),
    ("a default's place", ("None", "2", "3"), "x if k is None else x * k"),
    ("an attribute of a number", ("2", "3", "4"), "x * k.real + k.numerator"),
    ("a keyword of an operator", ("1", "2", "3"), "torch.add(x, x, alpha=k)"),
    ("a keyword that must be static", ("1", "2", "3"), "torch.roll(x, k)"),
    ("exponent of a tensor", ("2", "3", "0.5"), "x.abs() ** k"),
    ("exponent of an int tensor", ("2", "3", "4"), "x.long() ** k"),
    ("a tensor's comparison", ("1", "2", "3"), "(x > k).float()"),
    ("torch.where", ("1", "2", "3"), "torch.where(x > 0, x, k)"),
    ("torch.where of ints", ("1", "2", "3"), "torch.where(x > 0, 1, k)"),
    ("a complex", ("1j", "2j", "3j"), "x * k"),
    ("a string", ("'a'", "'b'", "'cc'"), "x * len(k) if k != 'b' else -x"),
    ("a mode's name", ("'sum'", "'mean'", "'none'"), "F.mse_loss(x, x * 2, reduction=k)"),
    ("a tuple of numbers", ("(1, 2)", "(1, 3)", "(2, 3)"), "x * k[0] + 2 ** k[1]"),
    ("a dictionary of numbers", ("{'a': 1}", "{'a': 2}", "{'b': 3}"), "x * 2 ** k.get('a', 5)"),
    ("a list of numbers", ("[1]", "[2]", "[2, 3]"), "x * sum(2 ** n for n in k)"),
    ("a NumPy number", ("np.float64(2)", "np.float64(3)", "np.float32(3)"), "x * k.item() + k.itemsize"),
    ("a dtype", ("torch.float16", "torch.float64", "torch.float16"), "x.to(k)"),
]  # fmt: skip
# Torch's own compiler is wrong about these (door "dynamo" shows it).
UNSEEN_BY_DYNAMO = {"the sign of zero"}


def _row(what: str, values: tuple[str, ...], code: str) -> Row:
    return Row(
        f"an argument: {what}",
        f"import math\nimport numpy as np\n{_TABLE}{_CLASS}k = {values[0]}",
        f"out = {code}",
        tuple(f"k = {value}" for value in values[1:]),
        args="x, k",
        stale_in_dynamo=what in UNSEEN_BY_DYNAMO,
    )


ROWS = [
    *(_row(*number) for number in NUMBERS),
    Row("two arguments that change in turn", "k, n = 2, 3", "out = x * 2 ** k + n", ("k = 3", "n = 4", "k, n = 4, 5"),
        args="x, k, n"),
    Row("a number's gradient", "w = torch.ones(4, requires_grad=True)\nk = 2.0", "out = (w * x) * k", ("k = 3.0",
        "k = 4.0"),
        args="x, k", grads="w,"),
    Row("a number that is returned", "k = 2", "out = (x * k, k, type(k).__name__)", ("k = 3", "k = 4.0", "k = True"),
        args="x, k"),
    Row("a number in a list that is returned", "k = 2", "out = [x * 2, k + 1, k * 0.5]", ("k = 3", "k = 4"),
        args="x, k", stale_in_dynamo=True),
]  # fmt: skip
