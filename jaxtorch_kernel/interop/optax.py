"""An optax transformation as a `torch.optim.Optimizer`.

torch sees an ordinary optimizer, with groups, hooks, schedulers and `state_dict`. optax does the computation, with one
`TensorUpdate` per group: one program takes parameters, gradients and state, and returns parameters and state.

* **State** is optax's pytree with a tensor on the jax device for each leaf, by name, in `optimizer.state["optax"]`: one
  dictionary per group. It is not stored per parameter, because parts of it (a count) belong to all parameters, and
  because torch casts the state that it loads for a parameter to that parameter's dtype.
* **Hyperparameters** are fixed when a transformation is created, unless it comes from `optax.inject_hyperparams`, which
  keeps them in the state. Those appear in the group, the learning rate under torch's name `lr`, and are operands of
  the program: a scheduler that sets them causes no compilation.
* **A parameter without a gradient** is unchanged, and so is its part of the state. Computations over all parameters
  treat its gradient as zero.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, SupportsIndex

import torch
from torch.optim.optimizer import ParamsT

from .optax_rule import Rule
from .tensor_update import assign

if TYPE_CHECKING:
    import optax

Tensor = torch.Tensor
_KEY: Any = "optax"  # in `state`, whose keys torch declares as tensors


def optax_optimizer(
    transformation: optax.GradientTransformation, params: ParamsT
) -> OptaxOptimizer:
    """A torch optimizer that applies an optax transformation.

    It works wherever a torch optimizer does: with `clip_grad_norm_`, `GradScaler`, hooks, `state_dict`, and
    `jaxtorch.jit`, where it is part of the step's program. torch's schedulers set the learning rate of a transformation
    from `optax.inject_hyperparams`; optax's own schedules need no setup.

    Args:
        transformation: such as `optax.adamw(1e-3)`.
        params: as for every torch optimizer: tensors, pairs of name and tensor (`model.named_parameters()`), or
            groups. On the jax device they are updated in place; on other devices they are passed to the
            program and copied back. A group may set a different "transformation", and hyperparameters ("lr").
            optax sees a group as a list of arrays, or a dictionary by name. Each group has its own state, with
            an entry for every parameter: omit parameters that are never trained.

    Returns:
        The optimizer. `step(closure=None, **extra)` passes `extra` to optax's `update`, and the closure's loss as
        `value`. A parameter whose gradient is None is unchanged.

    Raises:
        ImportError: optax is not installed.
        TypeError: `transformation` is not an optax transformation.
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
    """The optimizer that `optax_optimizer` returns."""

    takes_tensor_rate = True  # captured code gives `lr` as a tensor (`capture/optimizers.py`)

    def __init__(self, transformation: optax.GradientTransformation, params: ParamsT):
        self._transformation = _checked(transformation)
        self._rules: list[Rule] = []
        super().__init__(params, {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; the group may set its own "transformation" and hyperparameters."""
        group = _Group(param_group)
        transformation = _checked(group.pop("transformation", self._transformation))
        super().add_param_group(group)
        try:
            # An empty group is valid (one for parameters with weight decay, in a model without any) and has settings.
            params = group["params"] or [torch.zeros((), device="jax")]
            rule = Rule(transformation, len(params), group.get("param_names"))
            state = rule.begin(params)
            group.update(rule.settings(group, state))
        except BaseException:
            self.param_groups.pop()
            raise
        self._rules.append(rule)
        self.state.setdefault(_KEY, []).append(state)

    def step(self, closure: Callable[[], Any] | None = None, **extra: object) -> Any:
        """Update the parameters that have a gradient.

        Args:
            closure: recomputes the loss and the gradients; its result is passed to optax as `value`.
            **extra: further arguments of the transformation's `update`, tensors or numbers, by name.

        Returns:
            The result of the closure.
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
        """The last step of `load_state_dict`: assigns the values to the existing tensors, of all groups or none."""
        saved = state["state"].get(_KEY)
        if saved is None or len(saved) != len(self._rules):
            raise ValueError(
                "the loaded state dict is not from an optax optimizer with the same number of groups"
            )
        current = self._states()
        new = [t for now, then in zip(current, saved, strict=True) for t in _fitting(then, now)]
        groups = [
            _Group({name: old[name] for name in rule.hyperparameters} | new)
            for rule, old, new in zip(
                self._rules, self.param_groups, state["param_groups"], strict=True
            )
        ]
        assign([t for tensors in current for t in tensors.values()], new)
        super().__setstate__({"param_groups": groups})

    def __deepcopy__(self, memo: dict[int, object]) -> OptaxOptimizer:
        new = memo[id(self)] = type(self).__new__(type(self))
        rules, transformation = self._rules, self._transformation
        attributes = {k: v for k, v in vars(self).items() if k not in ("_rules", "_transformation")}
        vars(new).update(
            copy.deepcopy(attributes, memo), _transformation=transformation, _rules=list(rules)
        )
        return new

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        raise TypeError(
            "an optax transformation consists of closures, which cannot be pickled: save optimizer.state_dict(), and "
            "load it into a new optimizer from jaxtorch.optax_optimizer"
        )


class _NoRate(KeyError):
    def __str__(self) -> str:
        return str(self.args[0])


class _Group(dict[str, Any]):
    """A parameter group that explains why it has no learning rate."""

    def __missing__(self, key: str) -> Never:
        if key != "lr":
            raise KeyError(key)
        raise _NoRate(
            "this group has no lr: the learning rate is fixed inside the optax transformation. To set it from outside "
            "(with a torch scheduler), create the transformation with "
            "optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3), or use an optax schedule instead"
        )


def _checked(transformation: object) -> optax.GradientTransformation:
    """The argument, if it is an optax transformation."""
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
        "the first argument of optax_optimizer must be an optax transformation, such as optax.adamw(1e-3), not "
        f"{type(transformation).__name__}.{hint}"
    )


def _fitting(saved: dict[str, Tensor], current: dict[str, Tensor]) -> list[Tensor]:
    """The tensors of a saved state, in the order of the current one.

    Raises:
        ValueError: the saved state belongs to a different transformation, or to different parameters.
    """
    if saved.keys() != current.keys():
        lacks, has = sorted(current.keys() - saved.keys()), sorted(saved.keys() - current.keys())
        raise ValueError(
            f"the loaded state is from a different optax transformation: missing {lacks[:3]}, unexpected {has[:3]}"
        )
    for name, tensor in current.items():
        if saved[name].shape != tensor.shape:
            raise ValueError(
                f"the loaded state is from different parameters: {name} has shape {list(saved[name].shape)}, not "
                f"{list(tensor.shape)}"
            )
    return [saved[name] for name in current]
