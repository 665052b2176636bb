"""The copies of containers' output leave nothing behind in the agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from farmd.agent.runtimes.container_logs import ContainerLogs
from tests.fleet import eventually
from tests.still_clock import StillClock


class Said:
    """An engine with the output of one container, which has ended."""

    async def logs(self, container: str, since: int) -> AsyncGenerator[bytes, None]:
        yield b"2026-07-01T00:00:00Z hello\n"

    def stream(self, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        return pieces


def open_below(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [each for each in (str(link.readlink()) for link in links) if each.startswith(str(folder))]


async def test_a_copy_that_is_over_holds_no_file_open(tmp_path: Path) -> None:
    engine: Any = Said()
    folder = tmp_path / "logs"
    folder.mkdir()
    copies = ContainerLogs(engine, StillClock(), lambda _: False)
    for number in range(3):
        copies.follow(f"c{number}", f"s{number}", folder, (1000, 1))
        await copies.drained(f"c{number}")
    assert (folder / "current.log").read_text() == "hello\n" * 3
    assert open_below(tmp_path) == []
    await copies.close()


async def test_a_copy_that_is_stopped_holds_no_file_open(tmp_path: Path) -> None:
    engine: Any = Said()
    folder = tmp_path / "logs"
    folder.mkdir()
    copies = ContainerLogs(engine, StillClock(), lambda _: True)
    copies.follow("c", "s", folder, (1000, 1))

    async def opened() -> bool:
        return open_below(tmp_path) == [str(folder / "current.log")]

    await eventually(opened, what="the log")
    await copies.close()
    assert open_below(tmp_path) == []
