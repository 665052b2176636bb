"""Waits until a change has taken effect; for owners of pods, until they converged or are gone.

Pods are read from the store, not from the status, so waiting works even while the status is old. Each look
that differs from the last is passed to ``report``, so that people see progress, and a reason when there is
none. Time comes from the call's clock.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from farmd import overview
from farmd.commands.difference import manifest_of
from farmd.commands.edits import S
from farmd.commands.mutation import Call
from farmd.commands.noun import Noun
from farmd.commands.outlook import T
from farmd.runtime.errors import WaitTimeout
from store.errors import Conflict, NotFound, StoreUnavailable
from store.named import Owner
from store.ports import Clock
from store.words import count_of, listed

# Lines of text that fit a terminal: pure.

LEAST_WIDTH = 24
_OF_SERVICE = re.compile(r"services\.(?P<name>[^.:\[ ]+)\.(?P<rest>.+)", re.DOTALL)


def alike(warnings: Iterable[str]) -> list[str]:
    """Warnings of which those that several services have alike are one line."""
    found: dict[str, list[str]] = {}
    for text in warnings:
        service = _OF_SERVICE.fullmatch(text)
        found.setdefault(service["rest"] if service else text, []).append(service["name"] if service else "")
    return [_of_services(names, rest) if names[0] else rest for rest, names in found.items()]


def _of_services(names: list[str], rest: str) -> str:
    return f"services.{names[0]}.{rest}" if len(names) == 1 else f"services {listed(names, 3)}: {rest}"


def fitting(told: Iterable[str], width: int) -> list[str]:
    """The lines, folded where they are longer than the width; each rest is indented deeper."""
    if not width:
        return list(told)
    folded = (
        textwrap.wrap(
            line,
            max(width, LEAST_WIDTH),
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4),
            drop_whitespace=True,
            break_on_hyphens=False,
        )
        for line in told
    )
    return [line for each in folded for line in each]


_PAUSE = 0.5
_AWAY = 30.0
_REPORT_LAG = 3.0
_MANY_AILING = 3
_SETTLED = {"converged", "disabled"}


L = TypeVar("L")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a record; ``noun`` names its kind. ``outdated`` pods still run another manifest, or are not
    restarted yet.

    ``available`` pods are healthy for their owner's ``min_healthy_time`` (R22). ``desired`` below 0: only the
    owner can count them, and has not yet. ``stuck``: the owner reports that the result is not what was asked
    for, whatever the numbers. ``counts``: it owns pods. ``ailing`` names the first pods that are not healthy,
    with their nodes' reports. ``draw`` gives the lines for a terminal of some width, in place of a bar.
    """

    name: str
    state: str
    desired: int
    noun: str
    placed: int = 0
    healthy: int = 0
    available: int = 0
    outdated: int = 0
    reason: str = ""
    owner: str = ""
    stuck: bool = False
    counts: bool = True
    ailing: tuple[str, ...] = ()
    draw: Callable[[int], list[str]] | None = None

    @property
    def converged(self) -> bool:
        """Whether there are as many pods as desired, all available and up to date."""
        return self.placed == self.desired == self.available and not self.outdated and not self.stuck


Report = Callable[[Look], None]


class Spells:
    """How long this process has seen pods healthy, each in one start and without a break (R22).

    An agent's times only distinguish one start from another, so its clock does not matter.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[object, float]] = {}

    def lasted(self, pods: Sequence[overview.PodRow]) -> list[float]:
        """The seconds for each of these pods that is healthy."""
        now, before, self._seen = self._clock.mono(), self._seen, {}
        for pod in pods:
            if pod.healthy:
                place, spell = (pod.node, pod.instance), (pod.manifest, pod.started, pod.health_since)
                known = before.get(place)
                self._seen[place] = known if known is not None and known[0] == spell else (spell, now)
        return [now - began for _, began in self._seen.values()]


async def look(call: Call, noun: Noun[S, T], target: str, spells: Spells) -> Look:
    """A look at a record by its name or id.

    Raises:
        NotFound: it is gone.
    """
    row: overview.Row[Any] = await overview.row(
        call.client, call.keys, noun.records(call.client, call.keys), target
    )
    found = Look(
        noun=noun.words.noun,
        name=row.record.name,
        state=row.state,
        desired=0,
        reason=row.reason,
        owner=row.owner,
    )
    if getattr(row.record, "disabled", False) and not getattr(row.record, "deleting", False):
        stays = "its pods as they are" if noun.pods is not None else "it as it is"
        reason = f"farms leave {stays} until farmctl {noun.words.noun} enable {row.record.name}"
        found = msgspec.structs.replace(found, state="disabled", reason=reason)
    if noun.pods is None:
        return msgspec.structs.replace(found, counts=False, stuck=row.state not in _SETTLED)
    owner: Owner = row.record
    found = _counted(found, row, await _pods(call, owner), spells)
    if owner.count is not None:
        found = msgspec.structs.replace(found, desired=owner.count)
    elif not owner.deleting:
        # With no eligible node, or behind an older owner, no pod is desired, and all are there.
        desired = row.status.desired if row.status is not None and row.reported else -1
        found = msgspec.structs.replace(found, desired=desired, stuck=row.state == "blocked")
    # The owner's status may be old for a moment; it must not show as converged what is not.
    stale = found.state == "converged" and not found.converged
    return msgspec.structs.replace(found, state="pending") if stale else found


async def _pods(call: Call, owner: Owner) -> list[overview.PodRow]:
    """The pods that count: where every node has one, none on lost nodes, neither wanted nor missed (R21)."""
    placed = (await overview.pods(call.client, call.keys, owner)).placed
    if owner.count is not None or owner.deleting:
        return placed
    lost = await overview.lost(call.client, call.keys)
    return [pod for pod in placed if pod.node not in lost]


def _counted(found: Look, row: overview.Row[Any], pods: Sequence[overview.PodRow], spells: Spells) -> Look:
    """A look with the counts of its pods.

    If the owner's status says ``converged`` of this very record, the owner has watched the pods for long
    enough.
    """
    manifest, restart = manifest_of(row.record), getattr(row.record, "restart", 0)
    current = [pod for pod in pods if pod.manifest == manifest and pod.restart >= restart]
    lasted = spells.lasted(current)
    status, least = row.status, getattr(row.record, "min_healthy_time", 0.0)
    proven = status is not None and status.state == "converged" and status.record == row.index
    return msgspec.structs.replace(
        found,
        placed=len(pods),
        healthy=len(lasted),
        available=len(lasted) if proven else sum(one >= least for one in lasted),
        outdated=len(pods) - len(current),
        ailing=tuple(_ailing(pod) for pod in pods if not pod.healthy)[:_MANY_AILING],
    )


def _ailing(pod: overview.PodRow) -> str:
    return f"{pod.node}/{pod.instance} {pod.phase}{f' ({pod.reason})' if pod.reason else ''}"


async def until(
    call: Call,
    look: Callable[[], Awaitable[L]],
    done: Callable[[L, bool], bool],
    late: Callable[[L], Awaitable[WaitTimeout]],
    timeout: float,
    report: Callable[[L], None],
    shown: Callable[[L], object] = lambda now: now,
) -> L:
    """Look repeatedly until ``done``, which gets whether the time is over; report each look that differs.

    Raises:
        WaitTimeout: the time is over; ``late`` makes it. StoreUnavailable: it is for long, or at the end.
    """
    deadline, heard = call.clock.mono() + timeout, call.clock.mono()
    last: object = None
    while True:
        try:
            now = await look()
        except StoreUnavailable:  # what was asked for goes on after an election
            if call.clock.mono() >= min(deadline, heard + _AWAY):
                raise
            await call.clock.sleep(_PAUSE)
            continue
        heard = call.clock.mono()
        if shown(now) != last:
            report(now)
            last = shown(now)
        over = call.clock.mono() >= deadline
        if done(now, over):
            return now
        if over:
            raise await late(now)
        await call.clock.sleep(_PAUSE)


def _shown(now: Look) -> Look:
    """A look without the unhealthy pods, which change from look to look and are no progress."""
    return msgspec.structs.replace(now, ailing=())


async def convergence(call: Call, noun: Noun[S, T], target: str, timeout: float, report: Report) -> Look:
    """Wait until a record is converged, at most ``timeout`` seconds; a disabled one is not waited for.

    The owner's status gets a moment to agree, so that the next command shows the same.

    Raises:
        WaitTimeout: it is not; the message says how far it came and why.
        NotFound: it was deleted in the meantime.
    """
    spells, settled = Spells(call.clock), call.clock.mono() + _REPORT_LAG

    def done(now: Look, over: bool) -> bool:
        nonlocal settled
        if not now.converged:
            settled = call.clock.mono() + _REPORT_LAG
            return now.state == "disabled"
        return now.state in _SETTLED or over or call.clock.mono() >= settled

    async def late(now: Look) -> WaitTimeout:
        text = f"{now.noun} {now.name!r} did not converge within {timeout:g} s: {describe(now)}"
        return await _late(call, now, text)

    return await until(call, lambda: look(call, noun, target, spells), done, late, timeout, report, _shown)


async def deletion(call: Call, noun: Noun[S, T], target: str, timeout: float, report: Report) -> None:
    """Wait until the worker has deleted the record; no process of the owner runs then.

    Raises:
        WaitTimeout: it is still there; says so when no farm is there to remove it. It stays marked.
        Conflict: somebody undid the mark.
    """
    spells = Spells(call.clock)

    async def step() -> Look:
        now = await look(call, noun, target, spells)
        if now.state != "deleting" or now.desired > 0:
            raise Conflict(f"{now.noun} {now.name!r} was changed while it was being deleted", id=target)
        return now

    async def late(now: Look) -> WaitTimeout:
        left = f"still has {count_of(now.placed, 'pod')}" if now.placed else "is still there"
        why = f": {now.reason}" if now.reason else ""
        return await _late(call, now, f"{now.noun} {now.name!r} {left} after {timeout:g} s{why}")

    with suppress(NotFound):  # its worker took it away
        await until(call, step, lambda *_: False, late, timeout, report, _shown)


async def _late(call: Call, now: Look, text: str) -> WaitTimeout:
    return WaitTimeout(
        text, hint=await _why(call, now), look=msgspec.to_builtins(msgspec.structs.replace(now, draw=None))
    )


def describe(now: Look) -> str:
    """One line: ``3 of 5 placed, 2 healthy, 1 outdated; blocked: no eligible node``."""
    if not now.counts:
        return f"{now.state}{': ' + now.reason if now.reason else ''}"
    wanted = now.desired if now.desired >= 0 else "?"
    text = f"{now.placed} of {wanted} placed, {now.healthy} healthy"
    if now.available < now.healthy and now.desired:
        text += f", {now.available} available"
    if now.outdated:
        text += f", {now.outdated} outdated"
    return f"{text}; {now.state}{': ' + now.reason if now.reason else ''}"


async def _why(call: Call, now: Look) -> str:
    if not await overview.farms(call.client, call.keys):
        return "no farm is running, so nothing happens; start one with farmd run, and the change continues"
    if not now.owner:
        return now.reason or "no farm has claimed it yet"
    ailing = f"not healthy: {', '.join(now.ailing)}; " if now.ailing and now.desired else ""
    return f"{ailing}farmctl {now.noun} describe {now.name} shows more; farm {now.owner} owns it"
