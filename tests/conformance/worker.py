"""Checks the entries named on standard input and prints one JSON line for each."""

from __future__ import annotations

import json
import signal
import sys

SECONDS = 240  # for one entry in one kind


class _TooLong(Exception):
    pass


def _alarm(*_: object) -> None:
    raise _TooLong(f"more than {SECONDS} s")


def main() -> None:
    import torch

    from jaxtorch.capture.tpu import shared_compiler

    from .checks import Outcome, check

    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _alarm)
    kinds = sys.argv[1].split(",")
    with shared_compiler():
        for name in sys.stdin.read().split("\n"):
            outcomes = {}
            for kind in kinds:
                signal.alarm(SECONDS)
                try:
                    outcome = check(name, kind)
                except Exception as error:
                    outcome = Outcome("fail", "lowering", f"{type(error).__name__}: {error}"[:600])
                finally:
                    signal.alarm(0)
                outcomes[kind] = outcome.as_dict()
            print(json.dumps({"name": name, "kinds": outcomes}), flush=True)


if __name__ == "__main__":
    main()
