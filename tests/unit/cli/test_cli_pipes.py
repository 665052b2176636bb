"""Output to a pipe: its reader goes away, or one of several writers ends no line."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import click
import pytest

from farmd.cli import invocation, job_cluster
from farmd.cli.invocation import Invocation
from farmd.cli.logs import LogChoice, copy
from farmd.cli.output import looks
from farmd.cli.settings import Settings
from farmd.jobs.facts import Member, Slot
from farmd.kubernetes.objects import KubePod
from tests.people import person


@contextmanager
def piped() -> Iterator[int]:
    """What reads stdout in the block, which closes it."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", out)
        yield reading


async def test_a_watch_ends_when_its_reader_is_gone_although_nothing_changes() -> None:
    async def read() -> str:
        return "the same"

    async with person() as call:
        with piped() as reader:
            watching = looks(Invocation(Settings(), call), read)
            assert [await anext(watching), await anext(watching)] == ["the same", "the same"]
            os.close(reader)
            with pytest.raises(BrokenPipeError):
                await anext(watching)


@pytest.mark.parametrize(
    ("mutates", "dry_run", "code"), [(False, False, 0), (True, False, 1), (True, True, 0)]
)
def test_a_change_whose_reader_is_gone_does_not_pass_for_done(
    monkeypatch: pytest.MonkeyPatch, mutates: bool, dry_run: bool, code: int
) -> None:
    async def function(_: Invocation) -> None:
        raise BrokenPipeError

    for global_setting in ("_quiet_logs", "collect_rarely"):
        monkeypatch.setattr(invocation, global_setting, lambda *_: None)
    with piped() as reader:
        os.close(reader)
        with pytest.raises(click.exceptions.Exit) as ended:
            invocation.run(Settings(dry_run=dry_run), function, {}, mutates=mutates)
    assert ended.value.exit_code == code


async def test_logs_of_several_pods_whose_reader_is_gone_leave_nothing_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(job_cluster, "_stream", closed)
    members = [(KubePod(), Member(slot=Slot("worker", index))) for index in range(3)]
    wanted = LogChoice(follow=False, lines=1, previous=False, since=None, timestamps=False)
    found: Any = SimpleNamespace(name="ml/bert")
    async with person() as call:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with pytest.raises(BrokenPipeError):
                await job_cluster._all(Invocation(Settings(), call), found, found, members, wanted)
            gc.collect()
    assert [str(each.message) for each in said if each.category is RuntimeWarning] == []


async def test_a_line_without_an_end_is_written_while_it_grows() -> None:
    written: list[bytes] = []

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(1024):
            yield b"." * 1024
        assert sum(map(len, written)) > 900 * 1024, "a line that grows for ever would fill the memory"

    assert await copy(chunks(), b"n1/web: ", written.append)
    assert b"".join(written).count(b".") == 1024 * 1024
