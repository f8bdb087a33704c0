"""Run files of PyTorch's own device-generic tests on the jax device, beside the CPU.

    make torch-suite FILES="~/pytorch/test/test_view_ops.py ~/pytorch/test/test_indexing.py"
    python -m tests.torch_suite FILES -k 'not complex' --json build/torch_suite.json

torch's wheel has the framework of its tests, but not the tests: take them from a checkout of PyTorch, best of the
installed version. Nothing is fetched. A test that fails on the device alone is listed, and makes the exit status 1; one
that fails on the CPU as well says that the file wants another version of torch, or something that is missing here.
A test that ends its process, or takes longer than --timeout, has failed; the rest runs in a new one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .plugin import DEVICES, RECORD

ROOT = Path(__file__).resolve().parents[2]
OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Results:
    """What the tests of one file did.

    Attributes:
        tests: (device, test) -> (outcome, message of the failure).
        problem: why no test ran.
    """

    file: Path
    tests: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    problem: str = ""

    def count(self, device: str) -> Counter[str]:
        """How many tests of a device had each outcome."""
        return Counter(outcome for (d, _), (outcome, _) in self.tests.items() if d == device)

    def failed_on_jax_alone(self) -> dict[str, str]:
        """Tests that failed on the device and passed on the CPU, with the message."""
        return {
            name: message
            for (device, name), (outcome, message) in sorted(self.tests.items())
            if device == "jax"
            and outcome == "failed"
            and self.tests.get(("cpu", name), ("", ""))[0] == "passed"
        }


def run(file: Path, expression: str, timeout: int) -> Results:
    """Run a file, in as many processes as it ends."""
    results = Results(file)
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as record:
        while True:
            known = len(results.tests)
            process = _run_once(file, record.name, expression, timeout)
            for line in map(json.loads, record):
                results.tests[line["device"], line["test"]] = (line["outcome"], line["message"])
            unfinished = [
                key for key, (outcome, _) in results.tests.items() if outcome == "started"
            ]
            for key in unfinished:
                results.tests[key] = ("failed", _how_it_ended(process, timeout))
            if not unfinished or len(results.tests) == known:
                break
    if not results.tests and process.returncode not in (0, 5):  # 5: no test is selected
        results.problem = _how_it_ended(process, timeout)
    return results


def _run_once(
    file: Path, record: str, expression: str, timeout: int
) -> subprocess.CompletedProcess[str]:
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_TESTING_DEVICE")},
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        RECORD: record,
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.torch_suite.plugin", str(file)]
    # Neither the settings of this project nor those of PyTorch's tests, which ask for other plugins.
    command += ["-c", os.devnull, f"--rootdir={file.parent}", "--noconftest"]
    command += ["-p", "no:cacheprovider", "-q", "--tb=line", "-W", "ignore", "-k", expression]
    command += [f"--timeout={timeout}", "--timeout-method=thread"]
    return subprocess.run(
        command, cwd=file.parent, env=environment, capture_output=True, text=True, check=False
    )


def _how_it_ended(process: subprocess.CompletedProcess[str], timeout: int) -> str:
    lines = [line for line in (process.stdout + process.stderr).splitlines() if line.strip()]
    if any("+ Timeout +" in line for line in lines):
        return f"it took longer than {timeout} s"
    errors = [line for line in lines if line.startswith("E ")] or lines or ["no output"]
    return f"its process ended with {process.returncode}: {errors[-1].removeprefix('E ').strip()}"


def table(results: list[Results]) -> str:
    """Passed, failed and skipped of each file, on the device and on the CPU."""
    width = max(len(r.file.name) for r in results)
    head = "".join(f"{d + ' ' + o:>13}" for d in DEVICES for o in OUTCOMES)
    lines = [f"{'':{width}}{head}{'jax alone failed':>18}"]
    for r in results:
        counts = "".join(f"{r.count(d)[o]:13}" for d in DEVICES for o in OUTCOMES)
        lines.append(f"{r.file.name:{width}}{counts}{len(r.failed_on_jax_alone()):18}")
    return "\n".join(lines)


def main() -> None:
    """Run the files of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.torch_suite", description=__doc__.split("\n")[0]
    )
    parser.add_argument("files", nargs="+", type=Path, help="test files of a checkout of PyTorch")
    parser.add_argument(
        "-k", dest="expression", default="", help="pytest's expression for the names of tests"
    )
    parser.add_argument("--timeout", type=int, default=120, help="seconds for one test")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 2, help="files at the same time"
    )
    parser.add_argument("--json", type=Path, help="write the outcome of each test here")
    arguments = parser.parse_args()
    files = [file.expanduser().resolve() for file in arguments.files]
    if absent := [str(file) for file in files if not file.is_file()]:
        parser.error(f"no such file: {', '.join(absent)}")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda f: run(f, arguments.expression, arguments.timeout), files))
    if arguments.json:
        arguments.json.write_text(json.dumps([_as_data(r) for r in results], indent=1))
    print(table(results))
    for r in results:
        if r.problem:
            print(f"\n{r.file.name}: {r.problem}")
        if found := r.failed_on_jax_alone():
            print(f"\n{r.file.name}: failed on jax, passed on the CPU")
            for name, message in found.items():
                print(f"  {name}: {message.splitlines()[0] if message else ''}")
    sys.exit(any(r.problem or r.failed_on_jax_alone() for r in results))


def _as_data(r: Results) -> dict[str, object]:
    tests = [
        {"device": device, "test": name, "outcome": outcome, "message": message}
        for (device, name), (outcome, message) in sorted(r.tests.items())
    ]
    return {"file": str(r.file), "problem": r.problem, "tests": tests}


if __name__ == "__main__":
    main()
