"""Ports that no other test process on this machine uses, for servers and for the pods of agents.

Each process takes one block of ports (``farmd/dev/plan.py``), below those of the fleets of ``farmd dev``.
"""

from __future__ import annotations

import itertools
import socket
import struct
from functools import cache

from farmd.dev.plan import NoPorts, take_block

BLOCKS = range(10000, 20000, 250)
SERVERS = 100
SIZE = 250
ANSWER_SECONDS = 1.0


@cache
def _block() -> tuple[int, socket.socket]:
    """The first port of this process's block, and the socket that keeps others out."""
    return take_block(BLOCKS)


@cache
def _numbers() -> itertools.cycle[int]:
    first = _block()[0]
    return itertools.cycle(range(first + 1, first + SERVERS))


def pod_ports() -> tuple[int, int]:
    """First and last of the ports that agents of this process give to pods."""
    first = _block()[0]
    return first + SERVERS, first + SIZE - 1


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports on which a server is reached, and that are not given out again soon.

    Raises:
        NoPorts: there are not as many.
    """
    free = (port for port in itertools.islice(_numbers(), SERVERS - 1) if _is_free(host, port))
    found = list(itertools.islice(free, count))
    if len(found) < count:
        raise NoPorts(f"{len(found)} free ports in the block, {count} are wanted")
    return found


def _is_free(host: str, port: int) -> bool:
    """Whether who listens there is reached.

    A rule that a container engine left behind leads a port away from whoever listens on it.
    """
    with socket.socket() as probe, socket.socket() as caller:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT
        caller.settimeout(ANSWER_SECONDS)
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.bind((host, port))
            probe.listen(1)
            caller.connect((host, port))
            heard, peer = probe.accept()
        except OSError:
            return False
        with heard:
            return bool(peer == caller.getsockname())
