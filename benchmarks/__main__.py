"""`make bench`: all comparisons, or those that are named, in one run.

python -m benchmarks [dispatch|deferred|cold|recording|cpu_tensors|training|capture|sharding|torch_call|models|
                      attribution|profiles ...]
"""

from __future__ import annotations

import importlib
import os
import sys


def main() -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # compiling is timed too
    names = sys.argv[1:] or [
        "dispatch",
        "deferred",
        "cold",
        "recording",
        "cpu_tensors",
        "training",
        "capture",
        "sharding",
        "torch_call",
        "models",
        "attribution",
        "profiles",
    ]
    for name in names:
        print(f"# {name}", flush=True)
        for row in importlib.import_module(f"benchmarks.{name}").rows():
            print(row, flush=True)


if __name__ == "__main__":
    main()
