"""Captured code calls a function or a model that `torch.compile` compiled; what this one reads changes."""

from __future__ import annotations

from .harness import CAPTURES, Row

# Outside the captured code with the backend of the device, or with another one; inside it.
_WAYS = {
    "compiled for the device": (
        "c = torch.compile(f, backend='jax' if dev == 'jax' else 'eager')",
        "c",
    ),
    "compiled whole": ("c = torch.compile(f, backend='eager', fullgraph=True)", "c"),
    "compiled for another": ("c = torch.compile(f, backend='eager')", "c"),
    "compiled there": ("", "torch.compile(f, backend='eager')"),
}

_MODEL = """
f = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.BatchNorm1d(4)).to(dev)
with torch.no_grad():
    for i, p in enumerate(f.parameters()):
        p.copy_(torch.arange(p.numel()).reshape(p.shape) * 0.1 + i)
f.eval()
"""
_CALL_OF_MODEL = "out = {}(x.reshape(1, 4) * torch.ones(2, 1, device=x.device))"

# What changes: the source that sets up `f`, the change, and the call.
_READS: dict[str, tuple[str, str, str]] = {
    "a global": ("scale = 2.0\ndef f(x): return x * scale", "scale = 3.0", "out = {}(x)"),
    "a global of a helper": (
        "scale = 2.0\ndef helper(x): return x * scale\ndef f(x): return helper(x) + 1",
        "scale = 3.0",
        "out = {}(x)",
    ),
    "a closure": (
        "def make():\n    a = 2.0\n    def f(x): return x * a\n    def set(v):\n        nonlocal a\n        a = v\n"
        "    return f, set\nf, set_a = make()",
        "set_a(3.0)",
        "out = {}(x)",
    ),
    "a list": (
        "parts = [2.0, 1.0]\ndef f(x): return x * sum(parts)",
        "parts.append(4.0)",
        "out = {}(x)",
    ),
    "an attribute": (
        "class Settings: scale = 2.0\nsettings = Settings()\ndef f(x): return x * settings.scale",
        "settings.scale = 3.0",
        "out = {}(x)",
    ),
    "a mode": (
        "class Doubles(nn.Module):\n    def forward(self, x): return x * (2 if self.training else 3)\nf = Doubles()",
        "f.eval()",
        "out = {}(x)",
    ),
    "a parameter": (_MODEL, "f[0].weight = nn.Parameter(f[0].weight.detach() * 2)", _CALL_OF_MODEL),
    "a layer": (_MODEL, "f[2] = nn.GELU()", _CALL_OF_MODEL),
}

ROWS = [
    Row(
        f"{read} of a function {way}",
        f"{given}\n{compiled}",
        call.format(name),
        change,
        doors=CAPTURES,
    )
    for way, (compiled, name) in _WAYS.items()
    for read, (given, change, call) in _READS.items()
]
