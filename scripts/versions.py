"""Install the package beside other versions of Python, torch and JAX, run its tests, and write docs/versions.md.

`make versions` runs this. Each environment is a fresh virtual environment below build/versions, and is removed after
its tests: a torch with CUDA takes 5 GB. The tests are those of the last commit. Results go into docs/versions.json
after each folder of tests, so a run that was interrupted continues with the next folder. A folder is tested again only
if the code or the tests changed since its result. This script needs only Python and git.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "versions"
RESULTS = ROOT / "docs" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"

# The folders that a result depends on. A change elsewhere does not invalidate it.
TESTED = ["jaxtorch_kernel", "magics", "widgets", "tests"]


@dataclass(frozen=True)
class Environment:
    """One combination of versions."""

    python: str
    torch: str
    jax: str

    def __str__(self) -> str:
        return f"Python {self.python}, torch {self.torch}, jax {self.jax}"

    @property
    def folder(self) -> Path:
        return WORK / f"{self.python}-{self.torch}-{self.jax}"

    @property
    def source(self) -> Path:
        """The checkout that is tested."""
        return self.folder / "source"

    @property
    def interpreter(self) -> str:
        return str(self.folder / "bin" / "python")


# The versions that developers use, then each other version of one of the three.
ENVIRONMENTS = [
    Environment("3.11", "2.13.0", "0.10.2"),
    Environment("3.11", "2.15.0", "0.10.2"),
    Environment("3.11", "2.14.1", "0.10.2"),
    Environment("3.11", "2.13.0", "0.10.1"),
    Environment("3.11", "2.13.0", "0.10.0"),
    Environment("3.12", "2.15.0", "0.10.2"),
    Environment("3.13", "2.15.0", "0.10.2"),
    Environment("3.14", "2.15.0", "0.10.2"),
]

# Folders of tests, and the arguments of pytest that select a sample.
FOLDERS = {
    "device": ["tests/device"],
    "storage": ["tests/storage"],
    "dispatch": ["tests/dispatch", "tests/native"],
    "capture": ["tests/capture"],
    "interop": ["tests/interop"],
    "magics": ["tests/magics"],
    "views": ["tests/insight", "tests/widgets"],
    "others": [
        "tests/torch_api",
        "tests/models",
        "tests/lowerings",
        "tests/deferred",
        "tests/sharding",
    ],
    "conformance": ["tests/conformance/test_sample.py"],
}
SAMPLES = {
    "device": [
        "tests/device/test_private_hooks.py",
        "tests/device/test_private_hooks_of_jax.py",
        "tests/device/test_module.py",
    ],
    "dispatch": ["tests/dispatch/test_hot_path.py", "tests/dispatch/test_composites.py"],
    "capture": [
        "tests/capture/test_pure.py",
        "tests/capture/test_jit.py",
        "tests/capture/test_compile.py",
        "tests/capture/test_control_flow.py",
    ],
    "magics": ["tests/magics/test_on_off.py", "tests/magics/test_jit_cells.py"],
    "views": ["tests/insight/test_status.py", "tests/widgets/test_status.py"],
    "others": ["tests/torch_api/test_autograd.py", "tests/deferred/test_recording.py"],
    "conformance": ["tests/conformance/test_sample.py", "-k", "forward"],
}
# XLA's compiler at its fastest, as in `make test`: for folders whose tests do not look at XLA's programs.
OF_VALUES = ["device", "storage", "dispatch", "capture", "interop", "others", "conformance"]
FAST_XLA = "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false"
TEST_SECONDS = 300
FOLDER_SECONDS = 2 * 3600


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="environments whose description contains this")
    parser.add_argument("--folder", choices=FOLDERS, help="run this folder's tests alone")
    parser.add_argument("--sample", action="store_true", help="of the long folders, run a sample")
    parser.add_argument("--keep", action="store_true", help="keep the virtual environments")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page again")
    arguments = parser.parse_args()
    if not arguments.page:
        chosen = [e for e in ENVIRONMENTS if arguments.only in str(e)]
        folders = [arguments.folder] if arguments.folder else list(FOLDERS)
        for number, environment in enumerate(chosen, 1):
            print(f"[{number}/{len(chosen)}] {environment}", flush=True)
            run(environment, folders, arguments.sample)
            if not arguments.keep:
                shutil.rmtree(environment.folder, ignore_errors=True)
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))
    results = [r for environment in load().values() for r in environment.values()]
    return int(any(r.get("failed") or r.get("stopped") for r in results))


def run(environment: Environment, folders: list[str], sample: bool) -> None:
    """Run the folders of tests that have no result yet, and save the results."""
    missing = [f for f in folders if not is_known(environment, f, sample)]
    if not missing:
        print("    nothing has changed since the last run")
        return
    python = find_python(environment.python)
    if python is None:
        print(f"    not run: there is no Python {environment.python} here")
        return
    started = time.perf_counter()
    commit = export(environment.source)
    install(environment, python)
    print(f"    {'installed':12} {time.perf_counter() - started:5.0f} s", flush=True)
    for folder in missing:
        is_sample = sample and folder in SAMPLES
        today = datetime.date.today().isoformat()
        result = {"sample": is_sample, "date": today, "commit": commit}
        xla_flags = FAST_XLA if folder in OF_VALUES else ""
        result |= run_tests(
            environment, SAMPLES[folder] if is_sample else FOLDERS[folder], xla_flags
        )
        save(environment, folder, result)
        print(f"    {folder:12} {result['seconds']:5.0f} s  {outcome(result)}", flush=True)


# -- one environment ----------------------------------------------------------------------------------------


def find_python(version: str) -> str | None:
    """An interpreter of this version: on the path, or one of pyenv's."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        # pyenv also puts commands on the path for versions that are not selected, and these commands fail.
        if candidate and not subprocess.run([candidate, "-c", ""], capture_output=True).returncode:
            return candidate
    return None


def export(folder: Path) -> str:
    """Write the files of the last commit to a folder, so that changes to the checkout do not disturb the tests.

    Returns:
        The commit's abbreviated name.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    named = ["git", "rev-parse", "--short=10", "HEAD"]
    return subprocess.check_output(named, cwd=ROOT, text=True).strip()


def install(environment: Environment, python: str) -> None:
    """Make the virtual environment, with the package and the libraries of its tests."""
    pip = [
        environment.interpreter,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-cache-dir",
        "--no-compile",
    ]
    has_libraries = (
        environment.folder / "has_libraries"
    )  # an interrupted run may have installed them
    if not has_libraries.exists():
        subprocess.run([python, "-m", "venv", environment.folder], check=True)
        pins = (environment.source / "requirements" / "test.txt").read_text()
        constraints = environment.folder / "constraints.txt"
        constraints.write_text(re.sub(r"^(torch|jax|jaxlib)==.*\n", "", pins, flags=re.MULTILINE))
        varied = [f"torch=={environment.torch}", f"jax=={environment.jax}"]
        subprocess.run(
            [*pip, "--constraint", constraints, *varied, *libraries(environment)], check=True
        )
        has_libraries.touch()
    # Without its requirements, which may not allow these versions yet.
    subprocess.run([*pip, "--no-deps", "--force-reinstall", environment.source], check=True)
    # Without a compiler it says so, and the tests run without it.
    subprocess.run([environment.interpreter, "-m", "jaxtorch.native"], cwd=environment.folder)


def libraries(environment: Environment) -> Iterator[str]:
    """The libraries that the tests import: the extras of pyproject.toml, without documentation tools and linters."""
    project = tomllib.loads((environment.source / "pyproject.toml").read_text())["project"]
    for extra in ("notebook", "lab", "parallel", "test"):
        for requirement in project["optional-dependencies"][extra]:
            if not requirement.startswith((project["name"], "mypy", "ruff", "playwright")):
                yield requirement


def run_tests(environment: Environment, selection: list[str], xla_flags: str) -> dict[str, Any]:
    """The counts of one run of pytest, or a note that it did not finish."""
    report = environment.folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [environment.interpreter, "-m", "pytest", "-q", *selection]
    command += ["-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    command += ["--timeout", str(TEST_SECONDS), "--junitxml", str(report)]
    # A cache for each version of Python, because JAX's compression of programs depends on the version.
    settings = {"JAX_COMPILATION_CACHE_DIR": str(WORK / f"jax-cache-{environment.python}")}
    settings |= {"XLA_FLAGS": xla_flags, "JAXTORCH_LIBTPU": str(ROOT / "build" / "libtpu")}
    started = time.perf_counter()
    log = (WORK / f"{environment.folder.name}.log").open("a")
    with log, contextlib.suppress(subprocess.TimeoutExpired):  # then there is no report
        subprocess.run(
            command,
            cwd=environment.source,
            env=os.environ | settings,
            stdout=log,
            stderr=log,
            timeout=FOLDER_SECONDS,
        )
    seconds = round(time.perf_counter() - started)
    result: dict[str, Any] = {"seconds": seconds}
    if report.exists():
        result |= counts(report)
    # pytest also writes a report if it finds no test, as when a file of the selection has been renamed.
    has_run = result.get("passed") or result.get("skipped") or result.get("failed")
    return result if has_run else {"seconds": seconds, "stopped": True}


def counts(report: Path) -> dict[str, Any]:
    """How many tests passed and were skipped, and the names of those that failed."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = [c for c in cases if c.find("skipped") is not None]
    names = {f"{c.get('classname', '').replace('.', '/')}.py::{c.get('name')}" for c in failed}
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "skipped": len(skipped),
        "failed": sorted(names),
    }


# -- results ------------------------------------------------------------------------------------------------


def load() -> dict[str, dict[str, dict[str, Any]]]:
    """The results by environment and folder."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def save(environment: Environment, folder: str, result: dict[str, Any]) -> None:
    results = load()
    results.setdefault(str(environment), {})[folder] = result
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def is_known(environment: Environment, folder: str, sample: bool) -> bool:
    """Whether a folder has a result, at least as complete as wanted, for the code of the last commit."""
    result = load().get(str(environment), {}).get(folder)
    if result is None or (result["sample"] and not sample):
        return False
    unchanged = ["git", "diff", "--quiet", result["commit"], "HEAD", "--", *TESTED]
    return subprocess.run(unchanged, cwd=ROOT, capture_output=True).returncode == 0


# -- the page -----------------------------------------------------------------------------------------------


INTRODUCTION = """\
# Versions

`make versions` installs the package beside each combination of versions below, runs these tests on the CPU, and writes
this page. `pyproject.toml` allows ranges of versions, some of which were not tried. The first row has the versions of
`make test`, so `make versions` was not run for it. `device` includes the tests of the private hooks of torch and JAX.
`views` is insight and widgets; `others` is torch's API, models, lowerings, deferred execution and sharding.
`conformance` is every fifteenth entry of PyTorch's operator tests; [coverage](coverage.md) has them all. A cell gives
the tests that passed, then those that failed or were skipped. "Of a sample" means that only some files were run
(`SAMPLES` in `scripts/versions.py`). Of large tables a sample runs, as in `make test`. "-" means that nothing was run.
The last column has the day and the commit of the run.

"""

EARLIER = """
Rows that are older than 2026-11-28 say what these versions did then.

The failures of Python 3.12 and 3.13 and of torch 2.14 were mended after the runs that show them. Their files passed
when they were run again with the same versions, and so did all of `tests/interop` with Python 3.13. Those of jax
0.10.0 are of printed texts.

## Earlier runs

Before `make versions`, these folders were run by hand with torch 2.13.0 (the CUDA build, on a CPU) and jax 0.10.2:

- Python 3.13.0: `tests/device`, `tests/dispatch`, `tests/capture`, `tests/interop` and `tests/magics` passed, all of
  them whole. After `tests/capture` and `tests/magics` in one process, `test_a_thousand_steps_do_not_grow` found 3 kB
  more than before; alone it passed.
- Python 3.12.1: all of `tests/magics` passed.
"""


def page() -> str:
    results = load()
    lines = ["| Python | torch | jax | " + " | ".join(FOLDERS) + " | run |"]
    lines += ["| --- " * (len(FOLDERS) + 4) + "|"]
    failures: list[str] = []
    for environment in ENVIRONMENTS:
        tested = results.get(str(environment), {})
        cells = [environment.python, environment.torch, environment.jax]
        cells += [outcome(tested[f]) if f in tested else "-" for f in FOLDERS]
        cells += [
            ", ".join(sorted({f"{r['date']} ({r['commit']})" for r in tested.values()})) or "-"
        ]
        lines += ["| " + " | ".join(cells) + " |"]
        for result in tested.values():
            failures += [f"- {environment}: `{name}`" for name in result.get("failed", [])]
    if failures:
        lines += ["", "## Failures", "", *failures]
    return INTRODUCTION + "\n".join(lines) + "\n" + EARLIER


def outcome(result: dict[str, Any]) -> str:
    """A cell of the table, such as "112 passed, 1 failed"."""
    if result.get("stopped"):
        return "did not finish"
    parts = [f"{result['passed']} passed"]
    parts += [f"{len(result['failed'])} failed"] if result["failed"] else []
    parts += [f"{result['skipped']} skipped"] if result["skipped"] else []
    return ", ".join(parts) + (" of a sample" if result["sample"] else "")


if __name__ == "__main__":
    sys.exit(main())
