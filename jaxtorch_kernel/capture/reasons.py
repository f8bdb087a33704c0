"""Explains in words why code must be retraced: the differences between two states of its dependencies."""

from __future__ import annotations

import re

from ..programs.stats import Reason
from .dependencies.guard import Change
from .dependencies.tokens import AnyNumber, Code, Identity, Phrase, Structure, TensorLook, Value

# What a program depends on: path -> the token of the value there (`dependencies/tokens.py`).
State = dict[str, object]

_WITHIN = re.compile(r"[.\[]")
_NAMES = 4  # that one piece of advice lists; of more names, the number is given
_EDITED = "There is nothing to do: a function that was edited is traced once."
_HOOK = re.compile(r"\._\w*hooks\w*\[\d+\]")


def differences(before: State, after: State) -> list[str]:
    """The changes, one phrase each, outermost first. Changes inside a changed object are left out.

    Example:
        >>> from jaxtorch.capture.dependencies.tokens import token
        >>> differences({"p": token(0.5)}, {"p": token(0.3)})
        ['p 0.5 -> 0.3']
    """
    return list(dict.fromkeys(_phrase(*change) for change in changes(before, after)))


def changes(before: State, after: State) -> list[Change]:
    """The differences between two states."""
    paths = [*after, *(p for p in before if p not in after)]
    looks = ((path, before.get(path), after.get(path)) for path in paths)
    return outermost([Change(path, old, new) for path, old, new in looks if old != new])


def outermost(changes: list[Change]) -> list[Change]:
    """The changes without those inside of another changed object; a tuple is replaced by its changed elements."""
    outer: list[Change] = []
    containers: list[str] = []
    for change in sorted(changes, key=_depth):
        path, new = change.path, change.new
        if any(path.startswith(c) and path[len(c) :][:1] in (".", "[") for c in containers):
            continue
        outer += _elements(change)
        if not isinstance(new, TensorLook):
            containers.append(path)
    return outer


def _depth(change: Change) -> int:
    return len(_WITHIN.findall(change.path))


def _elements(change: Change) -> list[Change]:
    path, old, new = change
    if not isinstance(old, Structure) or not isinstance(new, Structure):
        return [change]
    if (old.kind, len(old.parts)) != ("tuple", len(new.parts)) or new.kind != "tuple":
        return [change]
    pairs = enumerate(zip(old.parts, new.parts, strict=True))
    return [Change(f"{path}[{i}]", a, b) for i, (a, b) in pairs if a != b]


def reasons(changes: list[Change]) -> list[Reason]:
    """The changes in words, with advice for each: one sentence for all names to which it applies.

    Example:
        >>> from jaxtorch.capture.dependencies.tokens import token
        >>> old, new = token(0.5), token(0.3)
        >>> {r.advice for r in reasons(changes({"p": old, "q": old}, {"p": new, "q": new}))}
        {'A number that changes becomes an operand. If the code needs its value, pass `p` and `q` in a tensor.'}
    """
    phrases = {_phrase(*change): (change.path, _advice(*change)) for change in _counted(changes)}
    names: dict[str, dict[str, None]] = {}
    for path, advice in phrases.values():
        names.setdefault(advice, {})[f"`{_root(path)}`"] = None
    return [
        Reason(what, _with_names(advice, list(names[advice])))
        for what, (_, advice) in phrases.items()
    ]


def _counted(changes: list[Change]) -> list[Change]:
    """The changes, with the gradients that came or went as one: an optimizer has one for each parameter."""
    groups: dict[object, list[Change]] = {}
    for i, change in enumerate(changes):
        key = (_root(change.path), change.old is None) if _is_gradient(change) else i
        groups.setdefault(key, []).append(change)
    return [_together(group) if len(group) > 1 else group[0] for group in groups.values()]


def _together(group: list[Change]) -> Change:
    path, old, new = group[0]
    gone = "gone" if new is None else "new"
    return Change(path, old, Phrase(f"and {len(group) - 1} other gradients are {gone}"))


def _is_gradient(change: Change) -> bool:
    """Whether a gradient is there that was not, or the other way round."""
    return change.path.endswith(".grad") and (change.old is None) != (change.new is None)


def _root(path: str) -> str:
    """The name that a path begins with."""
    return _WITHIN.split(path)[0]


def distance(changes: list[Change]) -> int:
    """How many things changed: the dtype, shape, device and requires_grad of a tensor count separately."""
    return sum(
        sum(a != b for a, b in zip(old, new, strict=True))
        if isinstance(old, TensorLook) and isinstance(new, TensorLook)
        else 1
        for _, old, new in changes
    )


def _with_names(advice: str, names: list[str]) -> str:
    """The advice with the names filled in."""
    if len(names) > _NAMES:
        names = [*names[: _NAMES - 1], f"{len(names) - _NAMES + 1} more"]
    several = ", ".join(names[:-1]) + " and " if len(names) > 1 else ""
    return advice.replace("{}", several + names[-1])


def _phrase(path: str, old: object, new: object) -> str:
    hook = _HOOK.search(path)
    if hook is not None:
        where = path[: hook.start()]
        if old is None:
            return f"a hook was added to {where}"
        return f"a hook of {where} was {'removed' if new is None else 'changed'}"
    if isinstance(new, Phrase):
        return f"{path} {new.text}"
    if old is None or new is None:
        return f"{path} {'is new' if old is None else 'is gone'}"
    if isinstance(old, Code) and isinstance(new, Code):
        if old.code is new.code or old.code == new.code:
            return f"function {path} has different defaults or a different closure"
        return f"function {path} was redefined"
    if isinstance(old, TensorLook) and isinstance(new, TensorLook):
        return _tensors(path, old, new)
    if isinstance(old, Value) and isinstance(new, Value):
        return f"{path} {_shown(old)} -> {_shown(new)}"
    if isinstance(new, AnyNumber) and isinstance(old, Value):
        return f"{path} is no longer {_shown(old)}: a number that changes becomes an operand"
    if isinstance(new, Value) and isinstance(old, AnyNumber):
        return f"{path} is {_shown(new)}: the code needs its value"
    if isinstance(new, TensorLook) and isinstance(old, Value):
        return f"{path} is a tensor, not {_shown(old)}"
    if isinstance(new, Value) and isinstance(old, TensorLook):
        return f"{path} is {_shown(new)}, not a tensor"
    if isinstance(old, str) or isinstance(new, str):
        return f"{path} is a different object"
    if isinstance(new, Structure):
        return f"{path} has different contents"
    kind = (
        new.kind
        if isinstance(new, Identity)
        else "tensor"
        if isinstance(new, TensorLook)
        else "object"
    )
    return f"{path} is a different {kind}"


def _advice(path: str, old: object, new: object) -> str:
    """How to avoid the retrace; {} is replaced by the names to which the advice applies."""
    if isinstance(old, TensorLook) and isinstance(new, TensorLook):
        if old.dtype != new.dtype:
            return "Convert {} to the same dtype before each call."
        if old.shape != new.shape:
            return (
                "Keep the sizes of {} the same: pad to a few sizes at most, or drop a last, smaller batch "
                "(DataLoader(drop_last=True))."
            )
        if old.requires_grad != new.requires_grad:
            return "Calls with and without gradients have separate programs: this happens once for each."
        return "Move {} to the same device before each call."
    if isinstance(new, AnyNumber) and isinstance(old, Value):
        return "This happens once for each number."
    if isinstance(new, Value) and isinstance(old, AnyNumber):
        return "Each value of {} has a program: pass a tensor, if the code can use one."
    if isinstance(new, Code):
        edited = isinstance(old, Code) and old.code != new.code
        return _EDITED if edited else "Define the function once, in a cell of its own."
    if path.endswith(".grad"):
        return "Calls with and without a gradient in `.grad` have separate programs: this happens once for each."
    if path.startswith("torch.") or path == "autocast" or path.endswith(".training"):
        return "Each mode has its own program: this happens once for each."
    if isinstance(old, Value) and isinstance(new, Value) and new.type in (int, float):
        return "A number that changes becomes an operand. If the code needs its value, pass {} in a tensor."
    if isinstance(old, Structure) or isinstance(new, Structure):
        return "Keep the contents of {} the same at each call, or pass one tensor."
    if isinstance(old, Identity) or isinstance(new, Identity):
        return "Create {} once and use the same object at each call."
    if old is None or new is None:
        if path == _root(path):  # an argument
            return "Pass {} at every call or at none."
        return "Keep the contents of {} the same at every call."
    return "Keep {} the same between calls."


def _gradient(tensor: TensorLook) -> str:
    return f"{'now' if tensor.requires_grad else 'no longer'} requires a gradient"


def _tensors(path: str, old: TensorLook, new: TensorLook) -> str:
    phrases = []
    if old.dtype != new.dtype:
        phrases.append(f"{path} {_short(old.dtype)} -> {_short(new.dtype)}")
    if len(old.shape) != len(new.shape):
        phrases.append(f"{path} {old.shape} -> {new.shape}")
    elif old.shape != new.shape:
        sizes = zip(old.shape, new.shape, strict=True)
        phrases += [f"{path}[{i}] {a} -> {b}" for i, (a, b) in enumerate(sizes) if a != b]
    if old.device != new.device:
        phrases.append(f"{path} {old.device} -> {new.device}")
    if old.requires_grad != new.requires_grad:
        phrases.append(f"{path} {_gradient(new)}")
    return ", ".join(phrases) or f"{path} is a different tensor"


def _shown(value: Value) -> str:
    text = str(value.value) if value.type in (float, complex) else repr(value.value)
    return text if len(text) <= 30 else text[:27] + "..."


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
