"""An optax transformation as a `torch.optim.Optimizer`.

To torch it is an optimizer like its own: groups, hooks, schedulers, `state_dict`. What it computes is optax's, one
`Rewriting` a group: parameters, gradients and state in, parameters and state out, in one program.

* **State** is optax's pytree with a tensor of the jax device for each leaf, by name, in `optimizer.state["optax"]`: one
  dictionary a group. It hangs on no parameter, because a part of it (a count) belongs to all, and because torch casts
  what it loads for a parameter to that parameter's dtype.
* **Hyperparameters** are fixed when a transformation is made, unless it was made by `optax.inject_hyperparams`, which
  keeps them in the state. Those stand in the group, the learning rate under torch's name `lr`, and are operands of the
  program: a scheduler that sets them compiles nothing.
* **A parameter without a gradient** stays as it is, and so does its part of the state. What is computed over
  all parameters takes its gradient for zero.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from .optax_rule import Rule
from .rewriting import assign

if TYPE_CHECKING:
    import optax

Tensor = torch.Tensor
_KEY: Any = "optax"  # of the state


def optax_optimizer(
    transformation: optax.GradientTransformation, params: Iterable[Any]
) -> OptaxOptimizer:
    """A torch optimizer that updates as an optax transformation does.

    All that takes a torch optimizer takes it: `clip_grad_norm_`, `GradScaler`, hooks, `state_dict`, and `jaxtorch.jit`,
    where it is a part of the step's program. torch's schedulers set the learning rate of a transformation that was
    made by `optax.inject_hyperparams`; optax's own schedules need nothing.

    Args:
        transformation: such as `optax.adamw(1e-3)`.
        params: as every torch optimizer takes them: tensors, pairs of name and tensor (`model.named_parameters()`), or
            groups. On the jax device they are updated in their own memory; on others they are lent to the
            program and copied back. A group may name another "transformation", and values for hyperparameters ("lr").
            To optax a group is a list of arrays, or a dictionary by name. Each group has a state of its own, with
            a place for every parameter: leave out what is never trained.

    Returns:
        The optimizer. `step(closure=None, **extra)` hands `extra` to optax's `update`, the closure's loss as `value`.
        A gradient of None leaves its parameter as it is.

    Raises:
        ImportError: optax is not installed.
        TypeError: it is no transformation.
        ValueError: a group sets a hyperparameter that the transformation does not have.

    Example:
        >>> import optax, torch, jaxtorch
        >>> w = torch.nn.Parameter(torch.ones(2, device="jax"))
        >>> optimizer = jaxtorch.optax_optimizer(optax.inject_hyperparams(optax.sgd)(0.5), [w])
        >>> w.sum().backward()
        >>> optimizer.step()
        >>> w
        Parameter containing:
        tensor([0.5000, 0.5000], device='jax:0', requires_grad=True)
        >>> optimizer.param_groups[0]["lr"]
        0.5
    """
    return OptaxOptimizer(transformation, params)


class OptaxOptimizer(torch.optim.Optimizer):
    """What `optax_optimizer` makes."""

    takes_tensor_rate = True  # captured code gives `lr` as a tensor (`capture/optimizers.py`)

    def __init__(self, transformation: Any, params: Iterable[Any]):
        self._transformation = _checked(transformation)
        self._rules: list[Rule] = []
        super().__init__(params, {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; the group may name a "transformation" of its own, and values for its hyperparameters."""
        group = _Group(param_group)
        transformation = _checked(group.pop("transformation", self._transformation))
        super().add_param_group(group)
        try:
            # An empty group is no mistake: all that decays, say, where nothing does. It has its settings all the same.
            params = group["params"] or [torch.zeros((), device="jax")]
            rule = Rule(transformation, len(params), group.get("param_names"))
            state = rule.begin(params)
            group.update(rule.settings(group, state))
        except BaseException:
            self.param_groups.pop()
            raise
        self._rules.append(rule)
        self.state.setdefault(_KEY, []).append(state)

    def step(self, closure: Callable[[], Any] | None = None, **extra: Any) -> Any:
        """Update the parameters that have a gradient.

        Args:
            closure: computes the loss and the gradients anew; to optax, its result is `value`.
            **extra: what the transformation's `update` takes besides, tensors or numbers, by name.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            extra.setdefault("value", loss)
        for group, rule, state in zip(self.param_groups, self._rules, self._states(), strict=True):
            rule.update(group, state, extra)
        return loss

    def _states(self) -> list[dict[str, Tensor]]:
        return self.state[_KEY]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """`load_state_dict` ends here: the values go into the tensors that are there, of all groups or none."""
        saved = state["state"].get(_KEY)
        if saved is None or len(saved) != len(self._rules):
            raise ValueError(
                "the loaded state dict is not of an optax optimizer with as many groups"
            )
        own = self._states()
        new = [t for now, then in zip(own, saved, strict=True) for t in _fitting(then, now)]
        groups = [
            _Group({name: old[name] for name in rule.hyperparameters} | new)
            for rule, old, new in zip(
                self._rules, self.param_groups, state["param_groups"], strict=True
            )
        ]
        assign([t for tensors in own for t in tensors.values()], new)
        super().__setstate__({"param_groups": groups})

    def __deepcopy__(self, memo: dict[int, Any]) -> OptaxOptimizer:
        new = memo[id(self)] = type(self).__new__(type(self))
        rules, transformation = self._rules, self._transformation
        own = {k: v for k, v in vars(self).items() if k not in ("_rules", "_transformation")}
        vars(new).update(
            copy.deepcopy(own, memo), _transformation=transformation, _rules=list(rules)
        )
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "an optax transformation is made of closures, which pickle cannot store: save optimizer.state_dict(), and "
            "load it into an optimizer that is made anew by jaxtorch.optax_optimizer"
        )


class _NoRate(KeyError):
    def __str__(self) -> str:
        return str(self.args[0])


class _Group(dict[str, Any]):
    """A parameter group that says why there is no learning rate in it."""

    def __missing__(self, key: str) -> Any:
        if key != "lr":
            raise KeyError(key)
        raise _NoRate(
            "this group has no lr: the learning rate is inside the optax transformation. Where it is to be set from "
            "outside (a torch scheduler), make it with "
            "optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3); or pass optax a schedule of its own"
        )


def _checked(transformation: Any) -> Any:
    try:
        import optax
    except ImportError:
        raise ImportError(
            "jaxtorch.optax_optimizer needs optax, which is not installed: pip install optax"
        ) from None
    if isinstance(transformation, optax.GradientTransformation):
        return transformation
    hint = " Call it: optax.adamw(1e-3)." if callable(transformation) else ""
    raise TypeError(
        f"optax_optimizer takes an optax transformation first, such as optax.adamw(1e-3), not "
        f"{type(transformation).__name__}.{hint}"
    )


def _fitting(saved: dict[str, Any], own: dict[str, Tensor]) -> list[Tensor]:
    """The tensors of a saved state, in the order of this one.

    Raises:
        ValueError: it is of another transformation, or of other parameters.
    """
    if saved.keys() != own.keys():
        lacks, has = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
        raise ValueError(
            f"the loaded state is of another optax transformation: it lacks {lacks[:3]} and has {has[:3]}"
        )
    for name, tensor in own.items():
        if saved[name].shape != tensor.shape:
            raise ValueError(
                f"the loaded state is of other parameters: {name} is {list(saved[name].shape)}, not "
                f"{list(tensor.shape)}"
            )
    return [saved[name] for name in own]
