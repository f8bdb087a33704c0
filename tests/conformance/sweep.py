"""Run the conformance checks over many entries, each chunk in a process of its own, and report.

    python -m tests.conformance.sweep                        # everything, with a progress bar
    python -m tests.conformance.sweep --ops 'fft|stft'       # entries whose name matches
    python -m tests.conformance.sweep --kinds forward,backward --failures
    python -m tests.conformance.sweep --ops '^linalg' --json build/known.json    # in pieces: what is known adds up

A crash (a fault inside XLA, say) costs the entries of its chunk one retry each, alone, and is reported as theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.libtpu import missing

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 900  # seconds for a chunk


def run_chunk(names: list[str], kinds: list[str], report: object) -> dict[str, dict]:
    """Check some entries in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.worker", ",".join(kinds)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
        },
    )
    killer = threading.Timer(TIMEOUT, process.kill)
    killer.start()
    results: dict[str, dict] = {}
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n".join(names))
    process.stdin.close()
    for line in process.stdout:
        if line.startswith("{"):
            entry = json.loads(line)
            results[entry["name"]] = entry["kinds"]
            report(1)  # type: ignore[operator]
    process.wait()
    killer.cancel()
    missing = [n for n in names if n not in results]
    if not missing:
        return results
    if len(names) == 1:
        report(1)  # type: ignore[operator]
        crash = {"status": "fail", "via": "cpu", "error": f"process died ({process.returncode})"}
        return {names[0]: dict.fromkeys(kinds, crash)}
    results |= run_chunk(missing[:1], kinds, report)
    if missing[1:]:
        results |= run_chunk(missing[1:], kinds, report)
    return results


def sweep(names: list[str], kinds: list[str], jobs: int, progress: bool = True) -> dict[str, dict]:
    """Check all these entries; entry -> kind -> outcome."""
    from tqdm import tqdm

    size = max(1, min(25, -(-len(names) // jobs)))
    chunks = [names[i : i + size] for i in range(0, len(names), size)]
    bar = tqdm(total=len(names), unit="entry", disable=not progress)
    results: dict[str, dict] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for part in pool.map(lambda c: run_chunk(c, kinds, bar.update), chunks):
            results |= part
    bar.close()
    return results


def with_earlier(results: dict[str, dict], file: Path) -> dict[str, dict]:
    """The outcomes of a run and, where it had none, those of the runs before, which are in the file; so it is then."""
    known: dict[str, dict] = json.loads(file.read_text()) if file.exists() else {}
    for name, outcome in results.items():
        known[name] = known.get(name, {}) | outcome
    file.write_text(json.dumps(known, indent=1))
    return known


def summary(results: dict[str, dict]) -> dict[str, Counter]:
    """Per kind: how many ran on the CPU and can run captured, passed, and by which way; how many need values."""
    counts: dict[str, Counter] = {}
    for kind in dict.fromkeys(kind for outcome in results.values() for kind in outcome):
        c: Counter = Counter()
        for outcome in (r[kind] for r in results.values() if kind in r):
            if outcome["status"] == "values":
                c["values"] += 1
            if outcome["status"] in ("none", "values"):
                continue
            c["ran"] += 1
            if outcome["status"] == "pass":
                c["passed"] += 1
                c[outcome["via"]] += 1
        counts[kind] = c
    return counts


def coverage_page(results: dict[str, dict], before: str = "") -> str:
    """docs/coverage.md: the table, the declared gaps, and what runs on the CPU.

    Of the kinds that were not run for every entry, the figures of the page `before` stay. Where there is no outcome,
    the gaps are those declared.
    """
    import jax
    import torch

    from .database import KINDS, entries
    from .gaps import GAPS

    lines = [
        "# Coverage",
        "",
        "PyTorch's own operator database (`op_db`, the first 10 samples of each entry) on the jax device against the",
        "CPU. Written by `make conformance`; an entry counts where the CPU itself runs at least one sample.",
        f"torch {torch.__version__}, jax {jax.__version__}, platform {jax.default_backend()}.",
        "",
        "`pure` and `pure-backward` run the same samples through `jaxtorch.pure`, with a separate program for each",
        "sample and for its gradients. `tpu` and `tpu-backward` compile one sample's program, the second with its",
        "gradients, for a TPU v5e by libtpu, and run nothing.",
        "An entry that writes to its arguments, which pure code may not, gets copies. Some code has sizes or",
        "Python values that depend on the values of tensors, as torch's own tags of its operators declare",
        "(`dynamic_output_shape`, `data_dependent_output`). Capture refuses such code with an error. It is excluded",
        "from the entries of these four checks, and is counted in the last column.",
        "",
        "Where a result differs from the CPU's by more than torch's tolerance, float64 decides: the CPU computes the",
        "sample with float64. Each element has to be within the tolerance of that result, or off from it by at most",
        "twice the largest error of the CPU's own elements of comparable size (`tests/conformance/comparison.py`).",
        "",
        "`errors` are the wrong inputs of torch's database: an entry passes if the device raises the same type of",
        "exception as the CPU for all of its inputs.",
        "",
        "| check | entries | passed | | without the CPU | by lowerings alone | by decomposition | through the CPU "
        "| need values |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    kept = {line.split("|")[1].strip(): line for line in before.splitlines() if line[:1] == "|"}
    for kind, counts in summary(results).items():
        if all(kind in results.get(name, {}) for name in entries()):
            kept[kind] = _row(kind, counts)
    lines += [kept[kind] for kind in KINDS if kind in kept]
    failing: dict[str, list[str]] = {}
    for name in sorted({*results, *GAPS}):
        for kind in KINDS:
            outcome = results.get(name, {}).get(kind)
            if outcome["status"] in ("fail", "values") if outcome else kind in GAPS.get(name, {}):
                failing.setdefault(name, []).append(kind)
    lines += [
        "",
        "## Gaps",
        "",
        "Each is declared in `tests/conformance/gaps.py` and must fail there.",
        "",
    ]
    lines += ["| entry | checks | reason |", "| --- | --- | --- |"]
    for name, found in failing.items():
        reasons = sorted({GAPS.get(name, {}).get(kind, "not declared yet") for kind in found})
        lines.append(f"| `{name}` | {', '.join(found)} | {'; '.join(reasons)} |")
    on_cpu = sorted(
        name
        for name, outcome in results.items()
        if any(o["via"] == "cpu" and o["status"] == "pass" for o in outcome.values())
    )
    lines += ["", "## Through the CPU", "", ", ".join(f"`{n}`" for n in on_cpu) or "None.", ""]
    return "\n".join(lines)


def _row(kind: str, c: Counter) -> str:
    ran, own = max(c["ran"], 1), c["passed"] - c["cpu"]
    return (
        f"| {kind} | {c['ran']} | {c['passed']} | {100 * c['passed'] / ran:.1f}% | {own} ({100 * own / ran:.1f}%) "
        f"| {c['lowering']} | {c['decomposition']} | {c['cpu']} | {c['values']} |"
    )


def undeclared(results: dict[str, dict]) -> list[str]:
    """Failures other than declared gaps, and declared gaps that pass."""
    from .gaps import GAPS

    found = []
    for name, outcome in sorted(results.items()):
        for kind, o in outcome.items():
            declared = kind in GAPS.get(name, {})
            if o["status"] in ("fail", "values") and not declared:
                found.append(f"{name} [{kind}] fails: {o['error'][:300]}")
            elif o["status"] == "pass" and declared:
                found.append(f"{name} [{kind}] passes, but is a declared gap")
    return found


def main() -> None:
    from .database import KINDS, TPU, entries

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ops", default="", help="regular expression on entry names")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--json", help="keep the outcomes here, beside those of earlier runs")
    parser.add_argument("--coverage", help="write the page of results here")
    parser.add_argument("--failures", action="store_true", help="print each failure")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    if set(kinds) & set(TPU) and (reason := missing()):
        print(f"What compiles for a TPU is left out: {reason}")
        kinds = [kind for kind in kinds if kind not in TPU]
    names = [n for n in entries() if re.search(arguments.ops, n)]
    results = sweep(names, kinds, arguments.jobs)
    known = with_earlier(results, Path(arguments.json)) if arguments.json else results
    if arguments.coverage:
        page = Path(arguments.coverage)
        page.write_text(coverage_page(known, page.read_text() if page.exists() else ""))
    for name, outcome in sorted(results.items()):
        for kind, o in outcome.items():
            if arguments.failures and (o["status"] in ("fail", "values") or o["via"] == "cpu"):
                print(f"{name} [{kind}] {o['status']} via {o['via']}: {o['error'][:300]}")
    for kind, c in summary(results).items():
        ran = max(c["ran"], 1)
        print(
            f"{kind:15} {c['passed']:4} of {c['ran']:4} passed ({100 * c['passed'] / ran:.1f}%), "
            f"{c['passed'] - c['cpu']} ({100 * (c['passed'] - c['cpu']) / ran:.1f}%) without the CPU, "
            f"{c['decomposition']} by decomposition, {c['values']} need values"
        )
    wrong = undeclared(results)
    if wrong:
        print(
            "\n".join(
                ["", "Neither passing nor a declared gap (tests/conformance/gaps.py):", *wrong]
            )
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
