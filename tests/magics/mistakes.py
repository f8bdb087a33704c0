"""Cells with mistakes, for the tests of tracebacks. `SETUP` defines the names that they use."""

from __future__ import annotations

SETUP = """
import torch
from torch import nn
import torch.nn.functional as F
import jaxtorch

def setup(device):
    global D, model, x, i, leaf
    D = device
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 3))).to(D)
    x, i = torch.ones(5, 4, device=D), torch.arange(5, device=D)
    leaf = torch.ones(3, device=D, requires_grad=True)

class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g @ g

class Mine(nn.Module):
    def forward(self, x):
        return x @ x
"""

# Mistakes that the CPU makes too.
MISTAKES = {
    "shapes in a model": "y = 1\nmodel(torch.ones(5, 7, device=D))",
    "shapes in a user's module": "nn.Sequential(Mine())(x)",
    "shapes of an operator": "x + torch.ones(3, 3, device=D)",
    "shapes of a matrix product": "x @ x",
    "shapes in a function": "def f(x):\n    return F.linear(x, x.T)\nf(x)",
    "dtype of an operator": "torch.bitwise_not(x)",
    "dtype of a loss": "F.cross_entropy(model(x), x[:, 0])",
    "dtype of a product": "x @ i.view(1, 5)[:, :4].T",
    "dtype of a result": "torch.add(x, 1, out=i)",
    "a dim": "x.sum(5)",
    "an index": "x[7]",
    "a tensor as index": "x[:, :, i]",
    "an index that is no integer": "x[x]",
    "a view": "x.view(7)",
    "a number": "i.to(torch.uint8).fill_(300)",
    "a value": "x.item()",
    "in place, shape": "x.add_(torch.ones(2, 5, 4, device=D))",
    "in place, dtype": "i.add_(1.5)",
    "in place, a leaf": "leaf.add_(1)",
    "in place, a view of a leaf": "leaf[0].mul_(2)",
    "in place, memory that overlaps": "x[:1].expand(5, 4).add_(1)",
    "backward of no scalar": "model(x).backward()",
    "backward a second time": "y = model(x).sum()\ny.backward()\ny.backward()",
    "backward after a write": "y = leaf.exp()\nz = y.sum()\ny.detach().mul_(2)\nz.backward()",
    "backward without a graph": "x.sum().backward()",
    "in a tensor's hook": "y = leaf * 2\ny.register_hook(lambda g: g @ x)\ny.sum().backward()",
    "in a module's hook": "model[0].register_forward_hook(lambda m, a, out: out @ out)\nmodel(x)",
    "in a backward hook": (
        "model[0].register_full_backward_hook(lambda m, gi, go: go[0] @ go[0])\nmodel(x).sum().backward()"
    ),
    "in a Function's backward": "Triple.apply(model(x)).sum().backward()",
    "in saved-tensor hooks": (
        "with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t @ t):\n"
        "    y = leaf.view(1, 3).exp()\ny.sum().backward()"
    ),
    "under no_grad": "@torch.no_grad()\ndef f(x):\n    return x @ x\nf(x)",
    "in an optimizer": (
        "o = torch.optim.SGD(model.parameters(), lr=0.1)\nmodel[0].weight.grad = torch.ones(2, device=D)\no.step()"
    ),
    "in an except block": "try:\n    {}['a']\nexcept KeyError:\n    x @ x",
}

# Errors of the device alone: (the cell, the frames of the user and of torch, words of the message)
ONLY_HERE: dict[str, tuple[str, int, int, str]] = {
    "a CPU tensor for a model": ("model(torch.ones(5, 4))", 1, 2, "same device"),
    "a CPU tensor for an operator": ("x + torch.ones(5, 4)", 1, 0, "same device"),
    "a device that is none": ("x.to('jax:3')", 1, 0, "invalid device"),
    "out of memory, empty": ("torch.empty(1 << 50, device=D)", 1, 0, "out of device memory"),
    "out of memory, zeros": ("torch.zeros(1 << 50, device=D)", 1, 0, "out of device memory"),
    "out of memory, an operator": (
        "y = torch.ones(1 << 14, device=D)\nz = y.view(-1, 1, 1) * y.view(1, -1, 1) * y\nz.cpu()",
        1,
        0,
        "out of device memory",
    ),
    "out of memory, shown": (
        "y = torch.ones(1 << 14, device=D)\ny.view(-1, 1, 1) * y.view(1, -1, 1) * y",
        0,
        1,
        "out of device memory",
    ),
    "pure": ("f = jaxtorch.pure(lambda x: x @ x)\nf(x)", 2, 0, "cannot be multiplied"),
    "pure of a module": ("jaxtorch.pure(model)(x.T)", 1, 2, "cannot be multiplied"),
    "pure, backward": (
        "f = jaxtorch.pure(lambda x: Triple.apply(x))\nf(x.requires_grad_()).sum().backward()",
        3,  # the backward pass is captured with the forward pass
        1,  # `torch.autograd.Function.apply`, between the line that calls it and `backward`
        "cannot be multiplied",
    ),
    "pure, a branch": (
        "@jaxtorch.pure\ndef f(x):\n    if x.sum() > 0:\n        return x\n    return -x\nf(x)",
        1,
        0,
        "has no value yet",
    ),
    "jit": ("@jaxtorch.jit\ndef f(x):\n    return model(x @ x)\nf(x)", 2, 0, "cannot be multiplied"),
    "jit, write": (
        "@jaxtorch.jit\ndef f(x):\n    x.add_(torch.ones(7, device=D))\nf(x)",
        2,
        0,
        "must match",
    ),
    "%%pure": ("%%pure\ny = x * 2\nz = y @ y", 1, 0, "cannot be multiplied"),
    "%%jit": ("%%jit\ny = x * 2\nz = model(y.T)", 1, 2, "cannot be multiplied"),
    "pure, a CPU tensor": (
        "f = jaxtorch.pure(lambda x: x + torch.ones(5, 4))\nf(x)",
        2,
        0,
        "same device",
    ),
    "jit, a CPU tensor": ("jaxtorch.jit(lambda x: model(x.cpu()))(x)", 1, 0, "has no value yet"),
    "%%pure, a CPU tensor": ("%%pure\ny = x + torch.ones(5, 4)", 1, 0, "same device"),
    "%%jit, a CPU tensor": ("%%jit\ny = x + torch.ones(5, 4)", 1, 0, "same device"),
    "jit, a branch": (
        "@jaxtorch.jit\ndef f(x):\n    if x.sum() > 0:\n        return x\n    return -x\nf(x)",
        1,
        0,
        "has no value yet",
    ),
    "pure, a write": (
        "@jaxtorch.pure\ndef f(y):\n    x.add_(1)\n    return y\nf(x)",
        1,
        0,
        "pure",
    ),
    "pure, a user's error": (
        "@jaxtorch.pure\ndef f(y):\n    raise ValueError('mine')\nf(x)",
        2,
        0,
        "mine",
    ),
    "%%pure, a user's error": ("%%pure\ny = x + 1\nraise ValueError('mine')", 1, 0, "mine"),
    "%%jit, a user's error": ("%%jit\ny = x + 1\nraise ValueError('mine')", 1, 0, "mine"),
    "pure, a JAX function": (
        "def f(a):\n    raise ValueError('mine')\njaxtorch.pure(lambda x: jaxtorch.call_jax(f, x))(x)",
        3,
        0,
        "mine",
    ),
    "pure, an argument": ("jaxtorch.pure(lambda x: x)(x, 1)", 1, 0, "argument"),
    "pure, out of memory": (
        "y = torch.ones(1 << 14, device=D)\nf = jaxtorch.pure(lambda y: y.view(-1, 1, 1) * y.view(1, -1, 1) * y)\n"
        "z = f(y).cpu()",
        1,
        0,
        "out of device memory",
    ),
    "jit, an optimizer": (
        "o = torch.optim.SGD(model.parameters(), lr=0.1)\n@jaxtorch.jit\ndef step(x):\n"
        "    model(x @ x).sum().backward()\n    o.step()\nstep(x)",
        2,
        0,
        "cannot be multiplied",
    ),
    "%%jit, backward": ("%%jit\ny = Triple.apply(leaf * x[0, :3])\ny.backward()", 1, 3, "scalar"),
    "deferred, a CPU tensor": (
        "jaxtorch.config.update(execution='deferred')\ny = model(x)\nmodel(torch.ones(5, 4))",
        1,
        2,
        "same device",
    ),
    "deferred, out of memory": (
        "jaxtorch.config.update(execution='deferred')\ny = torch.ones(1 << 14, device=D)\n"
        "z = (y.view(-1, 1, 1) * y.view(1, -1, 1) * y)\nz = z.cpu()",
        1,
        0,
        "out of device memory",
    ),
    "a JAX function": (
        "def f(a):\n    raise ValueError('mine')\njaxtorch.call_jax(f, x)",
        2,
        0,
        "mine",
    ),
    "a JAX function, shapes": (
        "def f(a):\n    return a @ a\njaxtorch.call_jax(f, x)",
        2,
        0,
        "contracting",
    ),
    "a JAX function as a torch function": (
        "jaxtorch.torch_view(lambda a: a.reshape(3, 9))(x)",
        2,
        0,
        "cannot reshape",
    ),
    "a JAX function in pure, with its gradient": (
        "import jax\ndef f(a):\n    return jax.nn.softmax(a).reshape(7)\n"
        "jaxtorch.pure(lambda x: jaxtorch.call_jax(f, x))(leaf)",
        3,
        0,
        "cannot reshape",
    ),
    "jax.grad of torch code": (
        "import jax\njax.grad(jaxtorch.jax_view(lambda t: (t @ t).sum()))(jax.numpy.ones((2, 3)))",
        2,
        0,
        "cannot be multiplied",
    ),
    "jit, out of memory": (
        "@jaxtorch.jit\ndef f(x):\n    return x[0, 0].expand(1 << 42).clone()\nf(x)",
        1,
        0,
        "out of device memory in `f`",
    ),
    "attention": (
        "q = torch.ones(2, 3, 4, device=D)\nF.scaled_dot_product_attention(q, q[..., :3], q)",
        1,
        0,
        "same last size",
    ),
    "torch code in JAX": (
        "import jax\ng = jaxtorch.torch2jax(lambda t: t @ t)\ng(jax.numpy.ones((2, 3)))",
        2,
        0,
        "cannot be multiplied",
    ),
}  # fmt: skip

# Mistakes in compiled functions: the cell, words of the message, and the line of the mistake.
COMPILED = {
    "an operator": (
        "@torch.compile(backend='jax')\ndef f(x):\n    y = x * 2\n    return y @ y\nf(x)",
        "reduction dim",
        4,
    ),
    "a device": (
        "@torch.compile(backend='jax')\ndef f(x):\n    return x + torch.ones(5, 4)\nf(x)",
        "same device",
        3,
    ),
    "a branch": (
        "@torch.compile(backend='jax', fullgraph=True)\ndef f(x):\n    if x.sum() > 0:\n"
        "        return x\n    return -x\nf(x)",
        "Data-dependent branching",
        3,
    ),
    "a module": (
        "class Wrong(nn.Module):\n    def forward(self, x):\n        return model(x @ x.T)\n"
        "torch.compile(Wrong(), backend='jax')(x)",
        "reduction dim",
        3,
    ),
    "an index": (
        "@torch.compile(backend='jax')\ndef f(x):\n    return x[7]\nf(x)",
        "out of bounds",
        3,
    ),
    "a write": (
        "@torch.compile(backend='jax')\ndef f(x):\n    x.add_(torch.ones(7, device=D))\n    return x\nf(x)",
        "broadcast",
        3,
    ),
    "a gradient": (
        "@torch.compile(backend='jax')\ndef f(x):\n    return Triple.apply(x).sum()\nf(model[0].weight)",
        "reduction dim",
        3,
    ),
    "a step": (
        "o = torch.optim.SGD(model.parameters(), lr=0.1)\n@torch.compile(backend='jax')\ndef step(x):\n"
        "    model(x @ x).sum().backward()\n    o.step()\nstep(x)",
        "reduction dim",
        4,
    ),
    "a JAX function": (
        "def g(a):\n    raise ValueError('mine')\n@torch.compile(backend='jax')\ndef f(x):\n"
        "    return jaxtorch.call_jax(g, x)\nf(x)",
        "mine",
        5,
    ),
    "a value": (
        "@torch.compile(backend='jax', fullgraph=True)\ndef f(x):\n    print(x)\n    return x\nf(x)",
        "print",
        3,
    ),
}

# Cells that cannot be captured: the cell, and words of the message.
REFUSED = {
    "%%pure, a branch": ("%%pure\nif x.sum() > 0:\n    y = -x", "has no value yet"),
    "%%jit, a branch": ("%%jit\nif x.sum() > 0:\n    y = -x", "has no value yet"),
    "%%pure, a value": ("%%pure\ny = x * x.sum().item()", "has no value yet"),
    "%%pure, a write": ("%%pure\nx.add_(1)\ny = x * 2", "the cell writes into `x`"),
}

OTHERS = [
    "1 / 0",
    "import json\njson.loads('{')",
    "{}['a']",
    "try:\n    1 / 0\nexcept Exception:\n    [][0]",
]
