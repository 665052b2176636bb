"""The facts that an agent states of its node: labels and capacity. Labels that people set win over these."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping


def labels(configured: Mapping[str, str]) -> dict[str, str]:
    """``os``, ``arch``, ``kernel``, ``hostname``; the configured ones win."""
    found = {
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "kernel": platform.release(),
        "hostname": platform.node(),
    }
    return found | dict(configured)


def capacity() -> dict[str, float]:
    """``cpu`` in cores that this process may use, ``memory`` in bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": float(len(os.sched_getaffinity(0))), "memory": float(memory)}
