"""End this process when another process of the same run has died.

A collective operation waits for every process. If one has failed, the others would wait for minutes: JAX detects a
failure by missing heartbeats, but a process whose Python code raised an error still sends them while it waits for the
others to exit. In the end JAX aborts with the stack of its C++ threads.

So each process keeps one connection to process 0. The operating system closes it whenever a process dies, and a process
that ends with an exception sends a message first. Process 0 forwards the message. Each process prints it as one line,
and exits with code 1. A process that ends normally sends a message too, and its connection may then close.

JAX's heartbeats still cover the case in which no connection is closed: a machine that loses power or its network.

The watching thread ends before the interpreter shuts down. Python would end it later by `pthread_exit`, at any
instruction, and that can end the process with "FATAL: exception not rethrown".
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

_MESSAGE_DELAY = (
    0.5  # seconds from an operation's failure to the message about the peer whose death caused it
)
_LONGEST_STOP = 5.0  # seconds
_DONE = "done"


class Peers:
    """The connections of one process: process 0 has one to every other process, the others have one to process 0.

    Args:
        rank: the rank of this process.
        size: the number of processes.
        leave: a function that returns when all processes have ended normally.
    """

    def __init__(self, rank: int, size: int, leave: Callable[[], None]):
        self.rank, self.size, self._leave = rank, size, leave
        self._others: dict[socket.socket, int] = {}
        self._done: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._watch, name="jaxtorch-peers", daemon=True)
        self._failed = self._closed = False
        self._previous_hook = sys.excepthook

    def listen(self) -> int:
        """Start to listen, in process 0.

        Returns the port.
        """
        server = socket.create_server(("", 0), backlog=self.size)
        self._selector.register(server, selectors.EVENT_READ)
        self._start()
        port: int = server.getsockname()[1]
        return port

    def connect(self, host: str, port: int, timeout: float) -> None:
        """Connect to process 0, in the others.

        Raises:
            OSError: process 0 does not listen there.
        """
        connection = socket.create_connection((host, port), timeout)
        connection.settimeout(None)
        self._add(connection, 0)
        self._send(connection, str(self.rank))
        self._start()

    def close(self) -> None:
        """Announce that this process ends normally, and wait for the others to do the same."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        if sys.excepthook == self._on_error:
            sys.excepthook = self._previous_hook
        self._tell(_DONE)
        self._leave()  # another process may still die meanwhile: the thread watches
        self._stop.close()
        self._thread.join(_LONGEST_STOP)

    def _start(self) -> None:
        sys.excepthook = self._on_error
        atexit.register(self._at_exit)  # runs before JAX's, which waits for the other processes
        self._thread.start()

    def _add(self, connection: socket.socket, rank: int) -> None:
        self._others[connection] = rank
        self._selector.register(connection, selectors.EVENT_READ)

    def _watch(self) -> None:
        """Wait for messages, in a separate thread."""
        while True:
            for key, _ in self._selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._stopped:
                    return
                if connection in self._others:
                    self._read(connection)
                else:
                    accepted, _address = connection.accept()
                    self._add(accepted, int(_line(accepted) or 0))

    def _read(self, connection: socket.socket) -> None:
        rank, line = self._others[connection], _line(connection)
        if line == _DONE:
            self._done.add(rank)
        elif line:
            self._end(line)
        else:
            self._selector.unregister(connection)
            if rank not in self._done:
                self._end(f"process {rank} of {self.size} was killed or crashed")

    def _end(self, news: str) -> None:
        """Forward the message, print it, and end this process."""
        if self._failed:  # this process is ending with its own error
            return
        self._tell(news)
        sys.stdout.flush()
        why = "collective operations would wait forever"
        os.write(2, f"jaxtorch: {news}. Process {self.rank} exits too, because {why}.\n".encode())
        os._exit(1)

    def _tell(self, line: str) -> None:
        for connection in self._others:
            self._send(connection, line)

    def _send(self, connection: socket.socket, line: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            connection.sendall(f"{line}\n".encode())

    def _on_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print the exception that ends this process and send it to the others, unless another one died first."""
        time.sleep(
            _MESSAGE_DELAY
        )  # if another one has died, the watching thread ends this process meanwhile
        self._failed = True
        self._previous_hook(kind, error, trace)
        text = " ".join(f"{kind.__name__}: {error}".split())
        self._tell(f"process {self.rank} of {self.size} failed with {text[:400]}")

    def _at_exit(self) -> None:
        if not self._failed:
            self.close()
            return
        # JAX would wait for the other processes, and abort when it finds that they have ended.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _line(connection: socket.socket) -> str:
    """The next line; empty if the connection is closed."""
    read = b""
    with contextlib.suppress(OSError):
        while not read.endswith(b"\n"):
            byte = connection.recv(1)
            if not byte:
                return ""
            read += byte
    return read.decode(errors="replace").strip()
