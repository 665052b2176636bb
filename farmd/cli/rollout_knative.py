"""``farmctl rollout`` for Knative Services (``ksvc/shop/web``); imported only where one is asked for."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import click

from farmd import overview
from farmd.cli.changes import apply
from farmd.cli.cluster import ConnectedCluster, Place, connected
from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import going_on, texts_of
from farmd.cli.output import as_json, as_yaml, document, drawable, emit, live, on_terminal, show, width_of
from farmd.cli.progress import progress
from farmd.cli.rollout_show import changes
from farmd.commands import documents
from farmd.kubernetes.commands import knative_namespace, refusals, workers
from farmd.kubernetes.knative import commands, view
from farmd.kubernetes.knative.objects import ENABLED, KnativeService
from farmd.kubernetes.knative.view import FoundService, RolloutRow, Services, told
from farmd.rollout.noun import ROLLOUT
from farmd.runtime.clock import SystemClock
from farmd.tables.model import Column, Table, clean
from store import selectors
from store.errors import InputInvalid
from store.mistakes import shown
from store.rollouts import Rollout, RolloutStatus
from store.times import plain

NOUN = "ksvc/"
_NAME = re.compile(r"([a-z0-9][-a-z0-9]*/)?[a-z0-9][-.a-z0-9]*")


class _There(NamedTuple):
    services: Services
    cluster: ConnectedCluster

    def split(self, name: str) -> tuple[str, str]:
        """Namespace and name of ``ksvc/shop/web``.

        Raises:
            InputInvalid: it is no such name; as a path it would be another object's.
        """
        if _NAME.fullmatch(own := name.removeprefix(NOUN)) is None:
            raise InputInvalid(f"NAME: found {shown(name)}, expected ksvc/NAMESPACE/NAME", field="NAME")
        return self.cluster.split(own)

    async def seen(self, invocation: Invocation, name: str) -> FoundService:
        """A service, with the farm that owns its rollout."""
        return await commands.owned(invocation.call, self.services, *self.split(name))


@asynccontextmanager
async def _there(invocation: Invocation, place: Place) -> AsyncIterator[_There]:
    async with connected(place) as cluster:
        namespace = knative_namespace(await workers(invocation.call, cluster.transport))
        yield _There(Services(cluster.transport, SystemClock(), namespace), cluster)


async def names(place: Place, incomplete: str) -> list[str]:
    """Names of services for completion: bare ones with ``-n``, else those of the namespace that was begun."""
    begun = incomplete.removeprefix(NOUN)
    if not (place.namespace or begun != incomplete or NOUN.startswith(incomplete)):
        return []
    async with connected(place) as cluster:
        namespace = begun.partition("/")[0] if "/" in begun else cluster.namespace
        reader = Services(cluster.transport, SystemClock(), "")
        found = await reader.of(KnativeService).list(namespace, f"{ENABLED}=true")
    return [each.metadata.name if place.namespace else f"{NOUN}{each.name}" for each in found]


async def listed(invocation: Invocation, place: Place, *, everywhere: bool, selector: str) -> None:
    """``rollout list``: the services of a namespace, or of all, and controllers of farmd's own cluster."""
    wanted = selectors.parse(selector)
    async with _there(invocation, place) as there:

        async def read() -> Table:
            with refusals():  # of one look: the next one may be answered
                found = await there.services.list("" if everywhere else there.cluster.namespace)
            for line in dict.fromkeys(there.services.misfits):
                invocation.say(f"farmctl: {clean(line)}")
            client, keys = invocation.client, invocation.keys
            farms = await told(invocation.call)
            own = await overview.rows(client, keys, ROLLOUT.records(client, keys))
            rows = [_of_controller(each) for each in own.rows if wanted.matches(each.record.labels)]
            rows += [view.row(each.with_word_of(farms)) for each in found]
            return _table(rows, own.broken)

        await show(invocation, read)


def _of_controller(row: overview.Row[Rollout]) -> RolloutRow:
    """A rollout of a controller, in the words of those of services."""
    status = row.status or RolloutStatus(state="")
    return RolloutRow(
        target="rc",
        name=row.record.name,
        id=row.record.id,
        phase=status.phase,
        stage=status.stage,
        stages=status.stages,
        owner=row.owner,
        reason=row.reason,
    )


def _name(row: RolloutRow) -> str:
    """The name of a rollout in the form that commands accept."""
    return f"{NOUN}{row.name}" if row.target == "ksvc" else row.name


def _table(rows: list[RolloutRow], broken: Sequence[str]) -> Table:
    columns = (
        Column("TARGET", lambda row: row.target),
        Column("NAME", _name),
        Column("PHASE", lambda row: row.phase),
        Column("STAGE", lambda row: f"{row.stage}/{row.stages}" if row.stages else "-"),
        Column("TRAFFIC", lambda row: row.shares or "-"),
        Column("OWNER", lambda row: row.owner or "-"),
        Column("REASON", lambda row: row.reason),
    )
    return Table("Rollout", rows, columns, name=_named, plain=plain, broken=broken)


def _named(row: RolloutRow) -> str:
    return _name(row) if row.target == "ksvc" else f"rollout/{row.name}"


async def status(invocation: Invocation, place: Place, name: str) -> None:
    """``rollout status``."""
    async with _there(invocation, place) as there:

        async def read() -> list[str]:
            with refusals():  # of one look: the next one may be answered
                seen = await there.seen(invocation, name)
            output = invocation.settings.output
            if output in {"json", "yaml"}:
                content = {
                    **plain(view.row(seen)),
                    "revisions": plain(view.stage(seen)),
                    "pods": plain(view.pods(seen)),
                }
                found = document("Rollout", content)
                return (as_json(found) if output == "json" else as_yaml(found)).splitlines()
            if output == "name":
                return [f"{NOUN}{seen.name}"]
            return [_drawn(line) for line in view.lines(seen, width_of(sys.stdout))]

        if not invocation.settings.watch:
            for line in await read():
                click.echo(line)
        elif on_terminal(invocation):
            await live(invocation, read)
        else:
            await changes(invocation, read)


async def explain(invocation: Invocation, place: Place, name: str) -> None:
    """``rollout explain``."""
    async with _there(invocation, place) as there:
        seen = await there.seen(invocation, name)
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        content = {**plain(view.row(seen)), "lines": view.explained(seen), "pods": plain(view.pods(seen))}
        found = document("RolloutExplanation", content)
        click.echo(as_json(found) if output == "json" else as_yaml(found), nl=output == "json")
    elif output == "name":
        click.echo(f"{NOUN}{seen.name}")
    else:
        for line in view.explained(seen):
            click.echo(_drawn(line))
        for each in view.pods(seen):
            click.echo(_drawn(f"    {each.pod} {each.state}{f': {each.reason}' if each.reason else ''}"))


async def plan(invocation: Invocation, place: Place, paths: tuple[str, ...]) -> None:
    """``rollout plan``."""
    asked = [
        commands.parse(data, source)
        for text, path in texts_of(paths)
        for source, data in documents.parse(text, path)
    ]
    async with _there(invocation, place) as there:
        found = [await _planned(there, each) for each in asked]
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        emit(invocation, document("RolloutPlanList", {"items": [plain(each) for each in found]}))
        return
    for each in found:
        for line in [f"{NOUN}{each.name}"] if output == "name" else commands.lines(each):
            click.echo(_drawn(line))


def _drawn(line: str) -> str:
    """A line as this terminal can show it."""
    return drawable(clean(line), sys.stdout.encoding)


async def _planned(there: _There, asked: commands.AskedService) -> commands.Planned:
    meta = asked.service.metadata
    place = (meta.namespace or there.cluster.namespace, meta.name)
    live = await there.services.template(*place)
    if live is None:
        return commands.first(asked.service, "/".join(place))
    pushes = not commands.same(live, asked.template)
    if not (pushes or asked.service.spec.traffic):
        return commands.Planned(name="/".join(place), reason=commands.STANDS)
    seen = await there.services.get(*place)
    return commands.planned(seen, await there.services.base(), asked.service, pushes=pushes)


async def pause(invocation: Invocation, place: Place, name: str) -> None:
    """``rollout pause``."""
    await say(invocation, place, name, "pause")


async def resume(invocation: Invocation, place: Place, name: str) -> None:
    """``rollout resume``."""
    await say(invocation, place, name, "resume")


async def revert(invocation: Invocation, place: Place, name: str, to: int | None) -> None:
    """``rollout revert``; the revisions of a Knative Service are named by their traffic, not by a history."""
    if to:
        raise InputInvalid(f"--to: found {to}, expected none for a Knative Service", field="to")
    await say(invocation, place, name, "revert")


async def say(invocation: Invocation, place: Place, name: str, verb: str, revision: str = "") -> None:
    """One word to a rollout; with ``--wait`` until it is over."""
    call, settings = invocation.call, invocation.settings
    async with _there(invocation, place) as there:
        seen = await there.seen(invocation, name)
        mutation = await commands.say(call, seen, verb, revision)
        await apply(invocation, [mutation], lambda each: commands.write(call, there.services, seen, each))
        if settings.wait is True and not settings.dry_run:
            with going_on(invocation, [mutation]), progress(invocation) as report:
                await commands.end(call, there.services, mutation.change, settings.timeout, report)
