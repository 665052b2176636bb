"""``farmctl apply --dcs``: an app in one datacenter after the other, each gated by the one before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import click

from farmd.apps import commands
from farmd.apps.facts import owner_of
from farmd.apps.scene import AppState, lives, standing
from farmd.cli.changes import CHANGES_DUE
from farmd.cli.datacenters import Datacenters, refuse_unknown
from farmd.cli.invocation import Invocation
from farmd.cli.output import document, emit
from farmd.cli.progress import progress
from farmd.commands import waiting
from farmd.commands.mutation import Call
from farmd.runtime.errors import EndedOtherwise, FarmdError, WaitTimeout
from farmd.tables.apps import state
from farmd.tables.model import clean
from store.apps import AppStore
from store.consul.environment import datacenter
from store.errors import InputInvalid, StoreError

One = Callable[[Invocation], Awaitable[str]]
"""Applies in one datacenter; returns the app's name."""
READY = "converged"
DUE = "changes are due"
UNREADY = ("progressing", "failed")


async def in_turn(invocation: Invocation, dcs: str, bake: float, one: One) -> None:
    """Call ``one`` in each datacenter, and go on once its app has been ready for ``bake`` seconds.

    A dry run plans in each of them, also behind one whose plan is refused.

    Raises:
        InputInvalid: a datacenter is unknown. StoreError, FarmdError: the first failure.
        Exit: as ``one`` does with a dry run.
    """
    names = _names(invocation, dcs)
    await refuse_unknown(invocation, names)
    outcomes, documents = dict.fromkeys(names, "not begun"), list[dict[str, Any]]()
    failed: StoreError | FarmdError | None = None
    programs, due = invocation.settings.output in {"json", "yaml"}, False
    async with Datacenters(invocation) as all_of_them:
        try:
            for name in names:
                there = replace(await all_of_them.at(name), shown=[] if programs else None)
                outcomes[name] = "begun"
                try:
                    outcomes[name] = await _turn(there, name, bake, one)
                except (StoreError, FarmdError) as error:
                    outcomes[name] = f"failed: {error.message}"
                    error.message = f"datacenter {name}: {error.message}"
                    failed = failed or error
                documents += [{"dc": name, **each} for each in there.shown or ()]
                due = due or outcomes[name] == DUE
                if failed is not None and not invocation.settings.dry_run:
                    break
        finally:
            _tell(invocation, outcomes, documents, programs=programs)
    if failed is not None:
        raise failed
    if due:
        raise click.exceptions.Exit(CHANGES_DUE)


async def _turn(there: Invocation, name: str, bake: float, one: One) -> str:
    """Apply in one datacenter and wait for its gate. Returns the app's state there."""
    _head(there, name)
    try:
        app = await one(there)
    except click.exceptions.Exit as end:
        if end.exit_code != CHANGES_DUE:
            raise
        return DUE
    return "planned" if there.settings.dry_run else await _gate(there, app, bake)


def _names(invocation: Invocation, dcs: str) -> list[str]:
    """The datacenters in their order.

    Raises:
        InputInvalid: none, one twice, or options that contradict.
    """
    names = [datacenter(name.strip(), "--dcs") for name in dcs.split(",") if name.strip()]
    if not names:
        raise InputInvalid("--dcs: found nothing, expected datacenters such as a,b", field="dcs")
    if len(names) > len(set(names)):
        raise InputInvalid(f"--dcs: found {dcs!r}, expected each datacenter once", field="dcs")
    if invocation.settings.dc:
        raise InputInvalid("--dcs: found with --dc, expected one of them", field="dcs")
    if invocation.settings.wait is False:
        raise InputInvalid("--no-wait: found with --dcs, which waits for each datacenter", field="wait")
    return names


async def _gate(there: Invocation, app: str, bake: float) -> str:
    """Wait until an app has been ready for ``bake`` seconds without a break.

    Raises:
        EndedOtherwise: its revision failed, is paused or was replaced. WaitTimeout: it is not ready in time,
            or was ready and did not become so again.
    """
    clock, wanted = there.call.clock, (await standing(there.call, app)).stored
    first = None if wanted is None else wanted.record.revision
    timeout = there.settings.timeout + bake
    since: float | None = None
    last, unready = clock.mono(), ""

    async def look() -> AppState:
        nonlocal unready
        now = await standing(there.call, app)
        # A revision that was reached counts as such whatever happens to its pods later.
        unready = await _unready(there.call, now) if now.stored is not None and state(now) == READY else ""
        return now

    def done(now: AppState, _: bool) -> bool:
        nonlocal since, last
        _refuse(now, first)
        at = clock.mono()
        if state(now) == READY and not unready:
            since, last = at if since is None else since, at
            return at - since >= bake
        since = None
        if at - last >= there.settings.timeout:
            told = f"was not ready for {there.settings.timeout:g} s: {unready or commands.told(now)}"
            raise WaitTimeout(f"app {app!r} {told}", hint=f"farmctl app describe {app}")
        return False

    async def late(now: AppState) -> WaitTimeout:
        told = unready or commands.told(now)
        return WaitTimeout(f"app {app!r} was not ready for {bake:g} s within {timeout:g} s: {told}")

    with progress(there) as report:
        now = await waiting.until(
            there.call,
            look,
            done,
            late,
            timeout,
            lambda now: report(commands.look(now)),
            lambda now: (now.status, now.state.wave),
        )
    return f"ready at revision {now.state.reached}"


async def _unready(call: Call, now: AppState) -> str:
    """The first object of an app's revision that is not ready now, and why; empty: all are."""
    assert now.stored is not None
    store = AppStore(call.client, call.keys)
    entries = {str(each.ref): each for each in await store.entries(now.name, now.stored.record.revision)}
    found = await lives(replace(call, part_of=owner_of(now.name)), entries, judged=True)
    return next((f"{ref}: {each.why}" for ref, each in found.items() if each.verdict in UNREADY), "")


def _refuse(now: AppState, revision: int | None) -> None:
    """Refuse to wait for what will not come.

    Raises:
        EndedOtherwise: a person or a failure has to be looked at first.
    """
    hint = f"farmctl app describe {now.name}"
    if now.stored is None or now.stored.record.deleting:
        raise EndedOtherwise(f"app {now.name!r} was deleted", hint=hint)
    if now.stored.record.revision != revision:
        found = now.stored.record.revision
        raise EndedOtherwise(f"app {now.name!r}: found revision {found}, expected {revision}", hint=hint)
    if now.stored.record.paused:
        raise EndedOtherwise(f"app {now.name!r} is paused", hint=f"farmctl app resume {now.name}")
    if now.state.refused == revision:
        raise EndedOtherwise(f"app {now.name!r}: revision {revision} failed: {now.state.failure}", hint=hint)


def _head(there: Invocation, name: str) -> None:
    if there.settings.dry_run and there.settings.output not in {"json", "yaml"}:
        click.echo(f"datacenter {name}")
    else:
        there.say(f"datacenter {name}")


def _tell(
    invocation: Invocation, outcomes: dict[str, str], documents: list[dict[str, Any]], *, programs: bool
) -> None:
    """Report each datacenter, for programs in one document with what was planned or written."""
    if programs:
        stands = [{"dc": name, "outcome": outcome} for name, outcome in outcomes.items()]
        emit(invocation, document("AppApplyList", {"items": documents, "datacenters": stands}))
    elif not invocation.settings.dry_run:
        for name, outcome in outcomes.items():
            invocation.say(clean(f"datacenter {name}: {outcome}"))
