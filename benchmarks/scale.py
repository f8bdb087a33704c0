"""What a large model needs on TPU chips that are not there: memory, collectives, and what compiling takes.

    python -m benchmarks.scale               # all cases, as a table
    python -m benchmarks.scale 1.1B --peer   # one, beside the same model in JAX

Each program is lowered and compiled in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from typing import Any

_COLLECTIVE = re.compile(
    r" = (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(-start)?\("
)
_ARRAY = re.compile(r"(pred|[a-z]+\d+)\[([\d,]*)\]")


def collectives(hlo: str) -> dict[str, list[float]]:
    """The collectives in the text of a program: their number and the bytes of their results on a chip, by kind.

    Those in a loop count once.
    """
    found: dict[str, list[float]] = {}
    for line in hlo.splitlines():
        if match := _COLLECTIVE.search(line):
            # The result of an asynchronous one is a tuple: what goes in, and what comes out.
            sizes = [_bytes(*array) for array in _ARRAY.findall(match[1])]
            size = max(sizes) if match[3] else sum(sizes)
            kind = found.setdefault(match[2], [0, 0])
            kind[0] += 1
            kind[1] += size
    return found


def _bytes(dtype: str, dimensions: str) -> int:
    count = 1
    for size in filter(None, dimensions.split(",")):
        count *= int(size)
    return count * (1 if dtype == "pred" else int(re.sub(r"\D", "", dtype)) // 8)


def measure(name: str, peer: bool, save: str | None) -> dict[str, Any]:
    """Lower and compile one case."""
    import jaxtorch
    from jaxtorch.capture.tpu import shared_compiler

    from .scale_models import CASES, compiled, jax_step, torch_step

    case, start = CASES[name], time.process_time()
    with shared_compiler():
        if peer:
            request = jax_step(case)
            lowered = time.process_time() - start
            program = compiled(request)
        else:
            step = torch_step(case)
            step.as_text()  # lowers it
            lowered = time.process_time() - start
            program = step.compile()
    if save:
        with open(save, "w") as file:
            file.write(program.hlo)
    report = jaxtorch.fit(program)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "case": name,
        "jax": peer,
        "lower_seconds": round(lowered, 1),
        "lower_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "compile_seconds": round(children.ru_utime + children.ru_stime, 1),
        "compile_bytes": children.ru_maxrss * 1024,
        "memory": dict(program.memory_analysis()),
        "flops": program.cost_analysis().get("flops"),
        "collectives": collectives(program.hlo),
        "step_seconds": report.time.total if report.time else None,
        "bound": report.time.bound if report.time else None,
        "utilization": report.utilization,
    }


def table(results: list[dict[str, Any]]) -> str:
    """The figures as a Markdown table.

    Sizes are those of one chip, of the lowering process, and of the compiler. The step's time is a lower bound.
    """
    lines = [
        "| model | arguments | temporaries | peak | code | step (estimate) | lowering | compiling |",
        "| --- " * 8 + "|",
    ]
    for row in results:
        memory = row["memory"]
        keys = ("argument_size", "temp_size", "peak_memory", "generated_code_size")
        sizes = [_gigabytes(memory[f"{key}_in_bytes"]) for key in keys]
        lowering = f"{row['lower_seconds']} s, {_gigabytes(row['lower_bytes'])}"
        compiling = f"{row['compile_seconds']} s, {_gigabytes(row['compile_bytes'])}"
        name = f"{row['case']}{' in JAX' if row['jax'] else ''}"
        seconds = row["step_seconds"]
        step = "" if seconds is None else f"{seconds:.2f} s, bound by {row['bound']}"
        lines.append(f"| {' | '.join([name, *sizes, step, lowering, compiling])} |")
    for row in results:
        lines.append(f"\n{row['case']}{' in JAX' if row['jax'] else ''}:")
        for kind, (count, size) in sorted(row["collectives"].items()):
            lines.append(f"  {count:.0f} {kind}, {_gigabytes(size)}")
    return "\n".join(lines)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def main() -> None:
    """Measure and print."""
    from tqdm import tqdm

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["0.03B", "1.1B", "7B", "70B"])
    parser.add_argument("--peer", action="store_true", help="the same models in JAX, too")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--save", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.cases[0], options.peer, options.save)))
        return
    runs = [(case, peer) for case in options.cases for peer in (False, True)[: 1 + options.peer]]
    results = []
    for case, peer in (bar := tqdm(runs, unit="program")):
        bar.set_description(f"{case}{' in JAX' if peer else ''}")
        command = [sys.executable, "-m", "benchmarks.scale", case, "--one", *["--peer"] * peer]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
    print(table(results))


if __name__ == "__main__":
    main()
