"""The console scripts ``farmd`` and ``farmctl``: ^C while they import their modules ends them with 130.

Python would print a traceback of the import. Nothing stands open yet, so the process may end where it is.
This module imports nothing that is slow, and installs its handler before all else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130


def farmd() -> None:
    """Run ``farmd``; the commands that have something to end handle ^C by themselves from then on."""
    _quiet("farmd")
    from farmd.__main__ import main

    main(prog_name="farmd")


def farmctl() -> NoReturn:
    """Run ``farmctl``, which reports ^C by itself as soon as it is imported."""
    restore = _quiet("farmctl")
    from farmd.cli.main import main

    restore()
    main()


def _quiet(name: str) -> Callable[[], object]:
    """End at once on ^C, unless who started this process has it ignored; returns what undoes that."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        return lambda: None

    def end(_number: int, _frame: object) -> NoReturn:
        os.write(2, f"{name}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, end)
    return lambda: signal.signal(signal.SIGINT, before)
