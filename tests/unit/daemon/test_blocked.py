"""What a process says whose event loop is blocked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from farmd.process import lifecycle


class Log:
    """Remembers what was logged as an error; ``then`` is called for each line."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self._then = then

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))
        self._then()


def write_state(path: Path, begun: list[bool]) -> None:
    """A write that no disk answers: nobody reads the pipe."""
    begun.append(True)
    os.close(os.open(path, os.O_WRONLY))


def test_a_write_that_the_disk_does_not_answer_is_logged_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pods.json"
    os.mkfifo(path)
    log = Log(then=lambda: os.close(os.open(path, os.O_RDONLY)))  # the disk answers again
    monkeypatch.setattr(lifecycle, "log", log)
    begun: list[bool] = []
    with lifecycle.logged(lambda: 12.34 if begun else 0.0, look=0.01, limit=10.0):
        write_state(path, begun)
    ((event, fields),) = log.lines
    assert (event, fields["seconds"]) == ("loop.blocked", 12.3)
    assert fields["where"].startswith("write_state (test_blocked.py:")


def told_of(ages: Iterable[float], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each line, where looks find a loop that old one after the other."""
    left, seen, log = iter(ages), threading.Event(), Log()

    def age() -> float:
        found = next(left, None)
        if found is None:
            seen.set()
        return found or 0.0

    monkeypatch.setattr(lifecycle, "log", log)
    with lifecycle.logged(age, look=0.01, limit=10.0):
        assert seen.wait(60)
    return [fields["seconds"] for _, fields in log.lines]


def test_a_process_that_was_stopped_as_a_whole_is_not_said_to_be_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told_of([0.0, 60.0, 0.0, 60.0], monkeypatch) == []


def test_a_loop_that_stays_blocked_is_logged_once_until_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told_of([60.0, 65.0, 70.0, 0.0, 60.0, 65.0], monkeypatch) == [65.0, 65.0]
