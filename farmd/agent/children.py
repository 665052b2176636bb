"""Short-lived child processes of the agent: each does one job, answers, and ends when its waiter does."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

END_SECONDS = 1.0
"""For how long an end by SIGKILL is waited for; a disk that is silent may hold it up."""


async def answered(
    program: Path, *options: str, environ: Mapping[str, str], told: bytes
) -> tuple[int, bytes]:
    """Run a file of Python, isolated, with bytes on its stdin: its exit code, and what it wrote to stdout.

    If the waiter is cancelled, the process is killed.

    Raises:
        OSError: it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", *options, str(program)),
        env=dict(environ),
        cwd="/",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        said, _ = await process.communicate(told)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait({asyncio.create_task(process.wait())}, timeout=END_SECONDS)
    assert process.returncode is not None
    return process.returncode, said
