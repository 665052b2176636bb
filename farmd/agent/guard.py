"""Ends one container once the lease of its pod is over (R27).

The guard runs alone: ``python -I -S guard.py <instance directory> <container>``. It has the memory of the
lease as its stderr, reads the rest, marshalled, from stdin, and writes ``ok`` to stdout. It asks nothing of
the engine before the lease is over, and then again and again until the container does not live. The agent
ends the guards of containers that have ended.
"""

# pathlib would cost more memory than the rest of this file:
# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import marshal
import os
import sys
import time
from _thread import allocate_lock, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from farmd.agent import become, lease, log_files, shim
else:
    # Last, so that nothing here stands in for a part of the standard library.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import become
    import lease
    import log_files
    import shim

    sys.path.pop()

ANSWER_SECONDS = 5.0
MARK_SECONDS = 1.0
LIVE = (b"running", b"paused", b"restarting", b"stopping")


def ask(url: str, method: str, path: str) -> bytes:
    """What the engine answers: its status line, headers and body.

    Raises:
        OSError: it does not answer.
    """
    kind, _, where = url.partition("://")
    request = f"{method} {path} HTTP/1.0\r\nHost: engine\r\nContent-Length: 0\r\n\r\n".encode()
    if kind == "unix":
        from _socket import AF_UNIX, SOCK_STREAM, socket

        asking: Any = socket(AF_UNIX, SOCK_STREAM)
        asking.settimeout(ANSWER_SECONDS)
        asking.connect(where)
    else:
        asking = _connected(kind, where.rstrip("/"))
    try:
        asking.sendall(request)
        parts = []
        while part := asking.recv(65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        asking.close()


def _connected(kind: str, where: str) -> Any:
    import http.client

    connections = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    connection = connections[kind](where, timeout=ANSWER_SECONDS)
    connection.connect()
    return connection.sock


def mark(directory: str, start: str) -> None:
    """Record that this start is ended because its lease is over, before it ends."""
    line = f'\n{{"start":"{start}","at":{time.time()!r},"code":-9,"cut_off":true}}\n'
    fd = os.open(directory + "/" + shim.EXITS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        log_files.write_all(fd, line.encode())
    finally:
        os.close(fd)


def mark_in_time(directory: str, start: str) -> None:
    """``mark``, without a wait for a disk that hangs."""
    written = allocate_lock()
    written.acquire()

    def write() -> None:
        try:
            mark(directory, start)
        except OSError:
            pass  # a disk that is full or gone: the end then looks like one of the container's own
        finally:
            written.release()

    start_new_thread(write, ())
    written.acquire(timeout=MARK_SECONDS)


def main(directory: str, container: str) -> None:
    """Hold the lease of a container until it is over; end it then, and return once it does not live."""
    become.close_others({0, 1, 2})
    spec = marshal.loads(shim.read_all(0))
    lease.keep_memory()
    os.write(1, b"ok")
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.setsid()
    marked: list[bool] = []

    def tried(method: str, path: str) -> bytes:
        try:
            return ask(spec["engine"], method, f"/containers/{container}/{path}")
        except OSError:
            return b""

    def signal(name: str) -> None:
        if not marked:
            marked.append(True)
            mark_in_time(directory, spec["start"])
        tried("POST", f"kill?signal={name}")

    def kill() -> None:
        signal("SIGKILL")
        if ended(tried("GET", "json")):
            os._exit(0)

    lease.hold(spec["stop_after"], spec["grace"], lambda: signal(spec["signal"]), kill)


def ended(answer: bytes) -> bool:
    """Whether this description of a container says that it does not live; no description says nothing."""
    status, words = answer.split()[1:2], answer.replace(b" ", b"")
    return status == [b"404"] or (
        status == [b"200"] and not any(b'"Status":"' + state + b'"' in words for state in LIVE)
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
