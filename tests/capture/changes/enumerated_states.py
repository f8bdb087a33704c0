"""Objects and dictionaries whose attributes or items the code enumerates, and gives tensors at each run."""

from __future__ import annotations

from itertools import product

from .harness import WRITES, Row

_OBJECTS = """
class C:
    pass
layers = [C(), C()]
for i, layer in enumerate(layers):
    layer.k = float(i + 1)
"""
_READS = {
    "getattr": "n = sum(getattr(l, 'flag', 0) for l in layers)",
    "getattr in a list": "n = sum([getattr(l, 'flag', 0) for l in layers])",
    "hasattr": "n = 0\nfor l in layers:\n    n += hasattr(l, 'flag')",
    "vars": "n = len([k for l in layers for k in vars(l)])",
    "__dict__": "n = sum(l.__dict__.get('flag', 0) for l in layers)",
    "its tensors": "n = sum(v.sum() for l in layers for v in vars(l).values() if isinstance(v, torch.Tensor))",
}
_STORES = {
    "an attribute": "layers[0].kind = x.dtype\nlayers[0].state = x * layers[0].k + n",
    "an attribute of each": "for l in layers:\n    l.kind, l.state = x.dtype, x * l.k + n",
    "setattr": "for l in layers:\n    setattr(l, 'state', x * l.k + n)",
    "a tuple": "layers[1].kind = x.dtype\nlayers[1].state = (x * layers[1].k, x + n)",
}
_CHANGES = ("layers[1].flag = 2", "layers[0].k = 5.0", "layers[0].state = layers[1].state = None",
            "layers[0].state = layers[1].state = x * 9", "del layers[1].flag",
            "layers[1].__dict__ = dict(reversed(list(vars(layers[1]).items())))")  # fmt: skip
_STATES = "torch.utils._pytree.tree_leaves([vars(l).get('state') for l in layers])"
_WATCH = f"[t.tolist() for t in {_STATES} if t is not None]"
_DICTIONARY = "d = {'k': 2.0, 'state': None}"
_DICTIONARY_READS = {
    "items": "n = len(list(d.items()))",
    "values": "n = sum(v is None for v in d.values())",
    "a copy": "n = len({**d})",
    "its tensors": "n = sum(v for v in d.values() if isinstance(v, torch.Tensor))",
}

ROWS = [
    *(
        Row(f"a state in enumerated objects: {stores}, read by {reads}", _OBJECTS,
            f"{_READS[reads]}\nout = x + n\n{_STORES[stores]}", _CHANGES, watch=(_WATCH,), doors=WRITES,
            stale_in_dynamo=reads == "__dict__")
        for reads, stores in product(_READS, _STORES)
    ),
    *(
        Row(f"a state in an enumerated dictionary, read by {reads}", _DICTIONARY,
            f"{code}\nout = x + n\nd['kind'] = x.dtype\nd['state'] = x * d['k'] + n",
            ("d['k'] = 5.0", "d['state'] = None", "d['state'] = x * 9", "d['more'] = 1"),
            watch=("d['state'].tolist()",), doors=WRITES)
        for reads, code in _DICTIONARY_READS.items()
    ),
]  # fmt: skip
