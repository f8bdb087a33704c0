"""What surrounds the code changes: modes and defaults of torch, settings of the process, clocks and dice."""

from __future__ import annotations

from .harness import CAPTURES, CELLS, PURE, Row

_ENTER = "mode = {}\nmode.__enter__()"
_LEAVE = "mode.__exit__(None, None, None)"
_MATRIX = (
    "a = torch.linspace(-1.0, 1.0, 16).reshape(4, 4)\nw = torch.ones(4, 4, requires_grad=True)\n"
)
_AUTOCAST = "torch.autocast(dev, torch.bfloat16)"

ROWS = [
    Row("the default dtype", "", "out = torch.full((2,), 0.5) * 2", "torch.set_default_dtype(torch.float64)"),
    Row("the default dtype of a division", "", "out = x.long() / 2", "torch.set_default_dtype(torch.float64)"),
    Row("the default dtype that code asks for", "", "out = x.to(torch.get_default_dtype())",
        ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)")),
    Row("the default device", "", "out = x * (2 if torch.get_default_device().type == 'meta' else 3)",
        "torch.set_default_device('meta')", doors=("eager", "pure", "jit")),
    Row("the default device in a with", "", "out = x * (2 if torch.empty(0).device.type == 'meta' else 3)",
        (_ENTER.format("torch.device('meta')"), _LEAVE), doors=("eager", "pure", "jit", "compile")),
    Row("no_grad around", _MATRIX, "out = (w @ a).tanh()", ("torch.set_grad_enabled(False)",
        "torch.set_grad_enabled(True)"),
        grads="w,"),
    Row("no_grad in a with", _MATRIX, "out = (w @ a).tanh()", (_ENTER.format("torch.no_grad()"), _LEAVE), grads="w,"),
    Row("is_grad_enabled", _MATRIX, "out = x * (2 if torch.is_grad_enabled() else 3)", "torch.set_grad_enabled(False)"),
    Row("inference_mode around", _MATRIX, "out = (w @ a).tanh()", (_ENTER.format("torch.inference_mode()"), _LEAVE),
        grads="w,", doors=PURE, undo="torch.set_grad_enabled(True)"),
    Row("is_inference_mode_enabled", "", "out = x * (2 if torch.is_inference_mode_enabled() else 3)",
        (_ENTER.format("torch.inference_mode()"), _LEAVE), doors=PURE),
    # A block of inference mode lets torch's autograd use other threads, where there is no trace.
    Row("gradients in a block with inference_mode(False)", _MATRIX, "with torch.inference_mode(False):\n"
        "    (out,) = torch.autograd.grad((w @ a).tanh().sum(), w)", "a = a * 2"),
    Row("gradients in a function with inference_mode(False)", _MATRIX + "@torch.inference_mode(False)\n"
        "def gradient(w, a):\n    return torch.autograd.grad((w @ a).tanh().sum(), w)[0]", "out = gradient(w, a)",
        "a = a * 2"),
    Row("gradients after blocks of inference_mode", _MATRIX, "with torch.inference_mode():\n    total = a.sum()\n"
        "with torch.inference_mode(False):\n    loss = (w @ a).tanh().sum()\n"
        "(out,) = torch.autograd.grad(loss, w)", "a = a * 2"),
    Row("autocast on and off", _MATRIX, "out = a @ a", (_ENTER.format(_AUTOCAST), _LEAVE)),
    Row("autocast's dtype", _MATRIX, "out = a @ a", (_ENTER.format(_AUTOCAST), _LEAVE,
        _ENTER.format("torch.autocast(dev, torch.float16)"), _LEAVE)),
    Row("autocast in the code with a flag", _MATRIX + "on = True",
        "with torch.autocast(dev, torch.bfloat16, enabled=on):\n"
        "    out = a @ a", ("on = False", "on = True")),
    Row("autocast in the code with a dtype", _MATRIX + "kind = torch.bfloat16", "with torch.autocast(dev, kind):\n"
        "    out = a @ a", "kind = torch.float16"),
    Row("is_autocast_enabled", "", "out = x * (2 if torch.is_autocast_enabled(dev) else 3)",
        (_ENTER.format(_AUTOCAST), _LEAVE)),
    Row("no_grad in the code with a flag", _MATRIX + "on = True", "with torch.set_grad_enabled(on):\n    out = w @ a",
        ("on = False", "on = True"), grads="w,"),
    Row("matmul precision that code asks for", "", "out = x * len(torch.get_float32_matmul_precision())",
        "torch.set_float32_matmul_precision('high')"),
    Row("deterministic algorithms", "", "out = x * (2 if torch.are_deterministic_algorithms_enabled() else 3)",
        "torch.use_deterministic_algorithms(True)"),
    Row("matmul precision of jaxtorch", _MATRIX + "import jaxtorch",
        "out = x * len(str(jaxtorch.config.matmul_precision))",
        ("jaxtorch.config.update(matmul_precision='highest')", "jaxtorch.config.update(matmul_precision='default')"),
        undo="jaxtorch.config.update(matmul_precision=None)", doors=CAPTURES),
    Row("the attention backend", "from torch.nn.attention import SDPBackend, sdpa_kernel\nq = torch.ones(1, 2, 4)",
        "out = F.scaled_dot_product_attention(q, q, q)", (_ENTER.format("sdpa_kernel(SDPBackend.MATH)"), _LEAVE)),
    # -- the environment --
    Row("an environment variable", "import os\nos.environ['ROW_SCALE'] = '2'", "out = x * int(os.environ['ROW_SCALE'])",
        "os.environ['ROW_SCALE'] = '3'"),
    Row("os.getenv", "import os", "out = x * int(os.getenv('ROW_SCALE', '2'))",
        ("os.environ['ROW_SCALE'] = '3'", "del os.environ['ROW_SCALE']"), stale_in_dynamo=True),
    Row("an environment variable in a function", "import os\ndef f(x):\n"
        "    return x * int(os.environ.get('ROW_SCALE', 2))",
        "out = f(x)", "os.environ['ROW_SCALE'] = '3'", stale_in_dynamo=True),
    Row("a file's text", "(folder / 'scale.txt').write_text('2')", "out = x * int((folder / 'scale.txt').read_text())",
        "(folder / 'scale.txt').write_text('3')", doors=CAPTURES, allowed="warned"),
    Row("sys.argv", "import sys\nkept = sys.argv", "out = x * len(sys.argv)", "sys.argv = ['a', 'b', 'c']",
        undo="sys.argv = kept", doors=CAPTURES),
    Row("a module that is imported", "import sys", "out = x * (3 if 'row_module' in sys.modules else 2)",
        "sys.modules['row_module'] = sys", undo="sys.modules.pop('row_module', None)", doors=CAPTURES),
    Row("a module that is imported, in a function", "import sys\ndef f():\n    return 'row_module' in sys.modules",
        "out = x * (3 if f() else 2)", "sys.modules['row_module'] = sys",
        undo="sys.modules.pop('row_module', None)", doors=CAPTURES),
    Row("a name that hides a builtin", "", "out = x * abs(-2)", "abs = lambda n: 7", stale_in_dynamo=True),
    Row("a name that hides a builtin in a function", "def f(x):\n    return x * abs(-2)", "out = f(x)",
        "abs = lambda n: 7", stale_in_dynamo=True),
    # -- clocks and dice --
    *(
        Row(f"{what}: says that it is read once", f"import {module}\n{given}", f"out = x * ({code} >= 0)", "",
            doors=("eager", *CELLS, "pure", "jit"), allowed="warned")
        for what, module, given, code in [
            ("random.random", "random", "", "random.random()"),
            ("random.randint", "random", "", "random.randint(0, 5)"),
            ("a name of random's", "random", "from random import choice", "choice([1, 2, 3])"),
            ("random.Random", "random", "dice = random.Random(0)", "dice.random()"),
            ("random.random in a function", "random", "def f():\n    return random.random()", "f()"),
            ("random.shuffle", "random", "items = [1, 2, 3]\ndef f():\n    random.shuffle(items)\n"
            "    return items[0]", "f()"),
            ("np.random.rand", "numpy as np", "", "np.random.rand()"),
            ("np.random.default_rng", "numpy as np", "rng = np.random.default_rng(0)", "rng.random()"),
            ("time.time", "time", "", "time.time()"),
            ("time.perf_counter", "time", "", "time.perf_counter()"),
            ("datetime.now", "datetime", "", "datetime.datetime.now().microsecond"),
            ("uuid4", "uuid", "", "uuid.uuid4().int"),
            ("os.urandom", "os", "", "os.urandom(1)[0]"),
            ("secrets", "secrets", "", "secrets.randbelow(5)"),
        ]
    ),
    Row("random.random under torch.compile", "import random", "out = x * random.random()", "random.seed(0)",
        doors=("eager", "compile")),
    Row("np.random.rand under torch.compile", "import numpy as np", "out = x * float(np.random.rand())",
        "np.random.seed(0)",
        doors=("eager", "compile")),
]  # fmt: skip
