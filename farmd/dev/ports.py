"""Ports for the pods of fleets on one machine: no two processes that ask here get the same ones.

The ports of agents on one loopback address must differ, also where several fleets run side by side. A block
of ports belongs to the process that has bound its first port, and is free again when that process ends,
however it ends. All blocks lie below the ports that Linux gives to outgoing connections (from 32768).
"""

from __future__ import annotations

import socket

SIZE = 100
BLOCKS = range(20000, 32000, SIZE)


class NoPorts(Exception):
    """All blocks of ports are taken; one line with where."""


def take_block(blocks: range = BLOCKS) -> tuple[int, socket.socket]:
    """The first port of a free block, and the socket that keeps others out of the block.

    Raises:
        NoPorts: every block is taken.
    """
    for first in blocks:
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", first))
        except OSError:
            guard.close()
            continue
        return first, guard
    raise NoPorts(f"every block of ports from {blocks.start} to {blocks.stop} is taken")
