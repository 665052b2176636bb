"""The audit log for people: searched by words and fields, a day at a time, followed while somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from farmd.farm.farm import Farm
from farmd.kinds import family_of
from farmd.web import paging
from farmd.web.lists import PAUSE_SECONDS, Source
from store.audit import Audit, AuditReader, Filter, utc_hour
from store.entry import Page
from store.errors import InputInvalid
from store.times import LATEST, rfc3339
from store.watch import follow

FIELDS = ("q", "item", "kind", "actor", "action")
DAY, HOUR = 86_400.0, 3600.0
MOST_READING = 2
"""Searches at once: each holds the records of an hour."""


class FoundChanges(NamedTuple):
    """Records, newest first; ``until`` says how far was looked, ``next`` is the cursor of what is older."""

    records: Sequence[Audit]
    broken: Sequence[str]
    until: str
    next: str


async def read(farm: Farm, reading: asyncio.Semaphore, query: Mapping[str, str]) -> FoundChanges:
    """The records that a query asks for.

    A search looks through a day of records at most, so that a rare word does not read the whole log; the
    others wait at ``reading`` meanwhile.

    Raises:
        InputInvalid: naming the parameter, what was found and what was expected.
    """
    asked, limit = paging.query(query), paging.limit(query)
    before, skip = _cursor(query.get("cursor", ""))
    narrow = any(query.get(name) for name in FIELDS)
    since = (min(before, farm.clock.now()) - DAY) if narrow else 0.0
    wanted = Filter(
        kind=family_of(query.get("kind", "")),
        item=query.get("item", ""),
        actor=query.get("actor", ""),
        action=query.get("action", ""),
        text=asked.text,
        since=since,
        until=before,
    )
    reader = AuditReader(farm.client, farm.keys)
    async with reading:
        found = (await reader.read(wanted, limit + skip + 1))[skip:]
    shown, broken = found[:limit], [error.message for error in reader.broken]
    if len(found) > limit:
        last = shown[-1].at
        same = sum(record.at == last for record in shown) + (skip if last == before else 0)
        return FoundChanges(shown, broken, "", f"{last!r}~{same}")
    older = narrow and await _older(farm, since)
    return FoundChanges(shown, broken, rfc3339(since) if older else "", f"{since!r}~0" if older else "")


async def _older(farm: Farm, since: float) -> bool:
    hours = await AuditReader(farm.client, farm.keys).hours()
    return bool(hours) and hours[-1] < rfc3339(since)[:13]


def _cursor(text: str) -> tuple[float, int]:
    """The time of the last record that was shown, and how many of that time were."""
    if not text:
        return LATEST, 0
    at, _, skip = text.partition("~")
    try:
        found = float(at), int(skip)
    except ValueError:
        found = -1.0, -1
    if not (0.0 <= found[0] <= LATEST and 0 <= found[1] <= paging.LARGEST_PAGE):
        raise InputInvalid("cursor: expected the cursor of an earlier answer", field="cursor")
    return found


class AuditBell(Source):
    """Rings when something was added to the audit log: it follows the keys of the present hour."""

    def __init__(self, farm: Farm) -> None:
        super().__init__(farm)
        self.reading = asyncio.Semaphore(MOST_READING)

    def _run(self) -> Iterator[asyncio.Task[None]]:
        yield asyncio.create_task(self._follow(), name="web-audit")

    async def _follow(self) -> None:
        farm = self.farm
        while True:
            now = farm.clock.now()
            prefix = farm.keys.audit_hour(utc_hour(now))

            async def query(index: int, wait: float, prefix: str = prefix) -> Page[str]:
                return await farm.client.keys(prefix, index=index, wait=wait)

            pages = follow(query, name=prefix, clock=farm.clock, rng=farm.rng, pause=PAUSE_SECONDS)
            try:
                async with asyncio.timeout(HOUR - now % HOUR):
                    async for _ in pages:
                        self.bell.ring()
            except TimeoutError:
                continue
