"""Models, ways of capturing them, and three steps of training to be compared with the same on the CPU."""

from __future__ import annotations

import torch
from torch import nn

import jaxtorch

# -- ways: a model -> (what to call, the device where its tensors live) ---------------------------------------------


def pure(model):
    return jaxtorch.pure(model), "jax"


def compile_on_jax(model):
    return compiled(model, fullgraph=True), "jax"


def compile_on_cpu(model):
    return compiled(model, fullgraph=True), "cpu"


def compiled(function, **options):
    return torch.compile(function, backend="jax", **options)


# -- models ---------------------------------------------------------------------------------------------------------


def mlp():
    """A small one, and its input."""
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)), torch.randn(5, 6)


# -- steps ----------------------------------------------------------------------------------------------------------


def moved(inputs, device):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}


def train(model, call, inputs, optimizer_of, step_of=lambda step: step):
    """The losses and logits of three steps.

    Args:
        model: whose parameters are trained.
        call: the model or what captures it: inputs by name -> an object with `loss` and `logits`.
        inputs: on the model's device.
        optimizer_of: parameters -> their optimizer.
        step_of: what captures a whole step.
    """
    optimizer = optimizer_of(model.parameters())

    def step(inputs):
        optimizer.zero_grad()
        out = call(**inputs)
        out.loss.backward()
        optimizer.step()
        return out.loss.detach(), out.logits.detach()

    step = step_of(step)
    results = [step(inputs) for _ in range(3)]
    return [tuple(t.cpu() for t in r) for r in results]


def same_state(model, expected):
    """Parameters and statistics."""
    own = {name: t.cpu() for name, t in model.state_dict().items()}
    torch.testing.assert_close(own, dict(expected.state_dict()))
