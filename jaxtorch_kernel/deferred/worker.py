"""The thread that compiles windows.

It is a daemon, so that the interpreter does not wait for windows that are only queued. But a thread that is inside XLA
when the interpreter ends would terminate the process, so it is joined at exit: one compilation at most is waited for.
"""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Worker:
    """Runs jobs one after the other. The thread starts with the first.

    Attributes:
        closing: whether the interpreter is ending: no further job begins.
    """

    def __init__(self) -> None:
        self.closing = False
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, job: Job) -> None:
        """Queue a job, which must not raise."""
        self._jobs.put(job)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="jaxtorch-deferred", daemon=True
                )
                self._thread.start()
                atexit.register(self._close)

    def wait(self) -> None:
        """Wait until every job that was queued has run."""
        if self._thread is not None:
            done = threading.Event()
            self.submit(done.set)
            done.wait()

    def _run(self) -> None:
        while not self.closing:
            self._jobs.get()()

    def _close(self) -> None:
        self.closing = True
        self._jobs.put(lambda: None)
        assert self._thread is not None
        self._thread.join()
