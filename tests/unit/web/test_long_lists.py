"""Lists of ten thousand items are made in slices, because the farm's loop has other work, too."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from farmd.kinds import KINDS
from farmd.web import item_lists, pages
from farmd.web.item_lists import NamedList
from farmd.web.visit import Visit
from store.entry import Stored
from store.keys import Keys
from store.rcs import ReplicationController
from tests.virtual import VirtualClock

KEYS, COUNT = Keys("farmd/"), 1000


def controllers() -> dict[str, Stored[ReplicationController]]:
    made = [
        ReplicationController(id=f"{each:016x}", name=f"web-{each}", manifest="a" * 64, replicas_desired=1)
        for each in range(COUNT)
    ]
    return {KEYS.record("rcs", rc.id): Stored(KEYS.record("rcs", rc.id), rc, 1, b"") for rc in made}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> NamedList:
    monkeypatch.setattr(item_lists, "AT_ONCE", 10)
    entries = controllers()
    tree = SimpleNamespace(entries=entries, get=entries.get, broken={}, subscribe=lambda _: None)
    caches = SimpleNamespace(tree=lambda _: tree, farms=SimpleNamespace(entries={}))
    farm: Any = SimpleNamespace(keys=KEYS, caches=caches, clock=VirtualClock(), client=None, rng=None)
    made = NamedList(farm, KINDS["rcs"], {})
    for each in made._followed:
        each.ready.set()
    return made


async def test_others_have_their_turn_between_the_lines_of_a_long_list(
    shown: NamedList, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, most, made, real = 0, 0, 0, shown.row

    def row(item: str) -> Any:
        nonlocal made, most
        made += 1
        most = max(most, made)
        return real(item)

    async def others() -> None:
        nonlocal turns, made
        while True:
            turns, made = turns + 1, 0
            await asyncio.sleep(0)

    monkeypatch.setattr(shown, "row", row)
    beside = asyncio.create_task(others())
    await shown.ready()
    lines = shown.lines()
    beside.cancel()
    assert len(lines) == COUNT
    assert most <= 20
    assert turns > COUNT / 20


async def test_the_loop_does_other_work_while_a_long_page_is_made(
    shown: NamedList, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, others = threading.Event(), threading.Event()

    def address(*_: Any, **__: Any) -> str:
        begun.set()
        assert others.wait(30.0), "nothing else ran meanwhile"
        return "?"

    async def other() -> None:
        await asyncio.to_thread(begun.wait, 10.0)
        others.set()

    monkeypatch.setattr(pages, "_address", address)
    monkeypatch.setattr(shown, "looking", contextlib.nullcontext)
    site: Any = SimpleNamespace(
        lists={shown.path: shown},
        access=SimpleNamespace(signs_in=False),
        farm=SimpleNamespace(settings=SimpleNamespace(name="one")),
        silent=lambda: "",
        drawing=asyncio.Semaphore(),
    )
    request: Any = SimpleNamespace(match_info={"list": shown.path}, query={"limit": "1000"}, path_qs="/")
    page, _ = await asyncio.gather(pages.listed(Visit(site, request, None)), other())
    assert isinstance(page, web.Response)
    assert (page.text or "").count('<th scope="row">') == COUNT
