"""A rollout in progress as the page shows it: both versions, the floor, gates, and what people may say."""

from __future__ import annotations

from typing import Any, NamedTuple

from farmd.commands.mutation import Call
from farmd.overview import Row
from farmd.rollout import commands
from farmd.rollout.view import lines
from farmd.tables.model import clean
from farmd.web.visit import Visit
from store.errors import NotFound, RecordInvalid
from store.rollouts import Rollout, RolloutStatus, SideStatus

WIDTH = 1000


class Side(NamedTuple):
    """One version: its word, its controller's name, its manifest, and its pods."""

    word: str
    name: str
    manifest: str
    pods: SideStatus


class Panel(NamedTuple):
    """``bar`` has the widths of the new and the old version's available pods and the floor, of ``WIDTH``."""

    rollout: Rollout
    status: RolloutStatus
    sides: tuple[Side, Side]
    bar: tuple[int, int, int]
    told: list[str]
    differs: list[str]
    words: list[str]


async def panel(visit: Visit, row: Row[Rollout]) -> Panel:
    """What is shown of a rollout beside its facts."""
    call = visit.site.call()
    sight = await commands.sight(call, row)
    rollout, status = row.record, row.status or RolloutStatus(state="pending")
    told = [clean(line).strip().replace("  ", " · ") for line in lines(sight, call.clock.now())]
    return Panel(
        rollout=rollout,
        status=status,
        sides=(
            Side("old", sight.old, rollout.from_manifest[:12], status.old),
            Side("new", sight.new, rollout.to_manifest[:12], status.new),
        ),
        bar=_bar(rollout, status),
        told=[line for line in told if not line.startswith(("old ", "new ")) and line != row.reason],
        differs=[clean(line) for line in await _differs(call, rollout)],
        words=words(rollout, status),
    )


async def _differs(call: Call, rollout: Rollout) -> list[str]:
    """One line for each field of the pod in which both versions differ; none where that is not known."""
    try:
        return (await commands.difference_of(call, rollout.id)).pod
    except (NotFound, RecordInvalid):
        return []


def words(rollout: Rollout, status: Any) -> list[str]:
    """What a person may say now."""
    found = [] if rollout.paused or rollout.wish else ["pause"]
    found += ["resume"] if rollout.paused or status.phase == "halted" else []
    found += ["approve"] if status.asks else []
    return found + ([] if rollout.wish or status.back else ["revert"])


def _bar(rollout: Rollout, status: RolloutStatus) -> tuple[int, int, int]:
    whole = max(rollout.replicas, rollout.started_from, status.old.available + status.new.available, 1)
    new, old, floor = status.new.available, status.old.available, status.minimum
    return WIDTH * new // whole, WIDTH * old // whole, WIDTH * min(floor, whole) // whole
