"""The views of the page: lists, items, explanations, the audit log, and all of it at a glance."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from farmd import overview
from farmd.commands.mutation import Call
from farmd.kinds import path
from farmd.overview import PodRow, Row
from farmd.rollout import commands
from farmd.rollout.nodes import over_nodes
from farmd.rollout.view import lines
from farmd.tables import changes
from farmd.tables.model import Described, Table, clean, colour_of
from farmd.web import audit, html, paging, planned
from farmd.web.lists import ItemList, ListLine
from farmd.web.visit import Visit, list_of
from store.audit import AuditReader, Filter
from store.errors import NotFound, RecordInvalid, StoreUnavailable
from store.rollouts import KIND as ROLLOUTS
from store.rollouts import Rollout, RolloutStatus, SideStatus

# A rollout in progress as the page shows it: both versions, the floor, gates, and what people may say.

WIDTH = 1000


class Side(NamedTuple):
    """One version: its word, its owner's name and page, its manifest, and its pods."""

    word: str
    name: str
    path: str
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


async def rollout_panel(visit: Visit, row: Row[Rollout]) -> Panel:
    """What is shown of a rollout beside its facts."""
    call = visit.site.call()
    sight = await commands.sight(call, row)
    rollout, status = sight.rollout, row.status or RolloutStatus(state="pending")
    told = [clean(line).strip().replace("  ", " · ") for line in lines(sight, call.clock.now())]
    return Panel(
        rollout=rollout,
        status=status,
        sides=(
            Side("old", sight.old, path(rollout.of, sight.old), rollout.from_manifest[:12], status.old),
            Side("new", sight.new, path(rollout.of, sight.new), rollout.to_manifest[:12], status.new),
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
    """The commands that a person may give now."""
    found = [] if rollout.paused or rollout.wish else ["pause"]
    found += ["resume"] if rollout.paused or status.phase == "halted" else []
    found += ["approve"] if status.asks else []
    found += [] if rollout.wish or status.back else ["revert"]
    if over_nodes(rollout):
        return found
    found += [] if rollout.wish == "abort" else ["abort"]
    return found + ([] if rollout.wish or status.back else ["scale"])


def _bar(rollout: Rollout, status: RolloutStatus) -> tuple[int, int, int]:
    whole = max(rollout.replicas, rollout.started_from, status.old.available + status.new.available, 1)
    new, old, floor = status.new.available, status.old.available, status.minimum
    return WIDTH * new // whole, WIDTH * old // whole, WIDTH * min(floor, whole) // whole


HISTORY = 10
MOST_TROUBLED = 20


class Cell(NamedTuple):
    """One cell as it is shown; ``colour`` is a class of the style sheet, ``href`` leads to what it names."""

    title: str
    text: str
    colour: str
    href: str = ""


def cells(table: Table) -> list[list[Cell]]:
    """The rows of a table without its wide columns."""
    columns = [column for column in table.columns if not column.wide]
    return [
        [
            Cell(
                column.title,
                text,
                colour_of(column.title, text),
                html.of_cell(column.title, text, row),
            )
            for column in columns
            for text in [clean(column.text(row))]
        ]
        for row in table.rows
    ]


async def rows_of(table: Table) -> list[list[Cell]]:
    """As ``cells``; of a long table in a thread."""
    return await asyncio.to_thread(cells, table) if len(table.rows) > paging.FEW else cells(table)


async def listed(visit: Visit) -> web.StreamResponse:
    """``/controllers`` and the other lists: searched, sorted, one page."""
    found = list_of(visit)
    asked = paging.query(visit.request.query)
    with found.looking():
        await found.ready()
        version = found.bell.version
        shown = await paging.found(found.lines(), asked, found.table([]).columns)
        table = found.table([line.row for line in shown.lines])
    return await visit.drawn(
        "list.html",
        title=found.many.capitalize(),
        list=found,
        path=found.path,
        asked=asked,
        shown=shown,
        table=table,
        columns=[column for column in table.columns if not column.wide],
        rows=list(zip([line.name for line in shown.lines], await rows_of(table), strict=True)),
        live=f"/{found.path}",
        at=version,
        address=_address,
    )


def _address(asked: paging.Query, **changed: str) -> str:
    """The query of the address that shows the same list with some parameters changed."""
    now = msgspec.structs.replace(asked, **changed)
    said = {"q": now.text, "state": now.state, "sort": now.sort, "cursor": now.cursor}
    said["limit"] = "" if now.limit == paging.PAGE else str(now.limit)
    return "?" + urlencode({name: value for name, value in said.items() if value})


async def item(visit: Visit) -> web.StreamResponse:
    """One item: its facts, its pods, and what happened to it last."""
    found, site, name = list_of(visit), visit.site, visit.request.match_info["name"]
    with found.looking():
        await found.ready()
        call = site.call()
        described = await found.described(call, name)
        topic = site.topic(f"/{found.path}/{described.id}")
        assert topic is not None
        version = topic.version
    # A day at most: an item with few changes would have the whole log read for them.
    wanted = Filter(kind=described.audited, item=described.id, since=call.clock.now() - audit.DAY)
    history = await AuditReader(call.client, call.keys).read(wanted, HISTORY) if described.audited else ()
    shown = [
        (title, table, [column for column in table.columns if not column.wide], await rows_of(table))
        for title, table in described.shown.items()
    ]
    pods = [row for table in described.shown.values() for row in table.rows if isinstance(row, PodRow)]
    uses = await site.usage.of_pods(call, pods)
    panel = await rollout_panel(visit, described.row) if found.family == ROLLOUTS else None
    return await visit.drawn(
        "item.html",
        title=described.name,
        list=found,
        path=found.path,
        item=described,
        colour=colour_of("STATE", described.state),
        facts=[(title, clean(text)) for title, text in described.facts if title != "State"],
        tables=[
            (title, table, columns, [("", row) for row in rows]) for title, table, columns, rows in shown
        ],
        history=_changes(history),
        uses=uses,
        panel=panel,
        explained=found.explains,
        acts=[act for act in planned.acts(found) if panel is None or act.word in panel.words],
        begins={"approve": str(panel.status.asks)} if panel is not None else {},
        live=f"/{found.path}/{described.id}",
        at=version,
    )


async def explanation(visit: Visit) -> tuple[Described, list[tuple[str, Table]]]:
    """The item of a request, and what explains its pods.

    Raises:
        HTTPNotFound: nothing does. NotFound: there is no such item.
    """
    found, call = list_of(visit), visit.site.call()
    if not found.explains:
        raise web.HTTPNotFound(text=f"there is nothing to explain about {found.many}")
    described = await found.described(call, visit.request.match_info["name"])
    return described, await found.explained(call, described.row)


async def explained(visit: Visit) -> web.StreamResponse:
    """Why each node does or does not get one more pod of an item, or each pod of a rollout stays or goes."""
    found = list_of(visit)
    described, tables = await explanation(visit)
    return await visit.drawn(
        "explain.html",
        title=f"Why: {described.name}",
        path=found.path,
        list=found,
        item=described,
        colour=colour_of("STATE", described.state),
        tables=[
            (title, table, list(table.columns), [("", row) for row in await rows_of(table)])
            for title, table in tables
        ],
    )


async def audited(visit: Visit) -> web.StreamResponse:
    """``/audit``: what happened, newest first, searched."""
    query, version = visit.request.query, visit.site.audit.bell.version
    found = await audit.read(visit.site.farm, visit.site.audit.reading, query)
    return await visit.drawn(
        "audit.html",
        title="Audit",
        path="audit",
        asked={name: query.get(name, "") for name in audit.FIELDS},
        changes=_changes(found.records),
        broken=found.broken,
        until=found.until,
        older="?" + urlencode({**{k: v for k, v in query.items() if v}, "cursor": found.next}),
        more=bool(found.next),
        live="/audit",
        at=version,
    )


def _changes(records: Sequence[Any]) -> list[dict[str, Any]]:
    """Audit records with one more field: the change in one line."""
    table = changes.table(records, ())
    shown = []
    for record in table.rows:
        texts = {column.title.lower(): clean(column.text(record)) for column in table.columns}
        shown.append({**texts, "kind": record.kind, "href": html.of_item(texts.get("item", ""))})
    return shown


async def fleet(visit: Visit) -> web.StreamResponse:
    """``/``: the fleet at a glance."""
    site, call = visit.site, visit.site.call()
    lists = list(site.lists.values())
    with ExitStack() as stack:
        for each in lists:
            stack.enter_context(each.looking())
        for each in lists:
            await each.ready()
        topic = site.topic("/")
        assert topic is not None
        version = topic.version
        summary = [(each, paging.selected(each.lines(), paging.Query(limit=1), ())) for each in lists]
        red = [
            (each, line)
            for each, found in summary
            if (bad := {state for state in found.states if colour_of("STATE", state) == "red"})
            for line in each.lines()  # thousands, of a few states
            if line.state in bad
        ]
        moving = [(line, line.row.status) for line in site.by_family[ROLLOUTS].lines()]
    frozen, recent = await _read_now(call)
    return await visit.drawn(
        "fleet.html",
        title="Fleet",
        summary=summary,
        colour_of=colour_of,
        troubled=[(each, line, _reason(each, line)) for each, line in red[:MOST_TROUBLED]],
        more=max(0, len(red) - MOST_TROUBLED),
        moving=moving[:MOST_TROUBLED],
        frozen=sorted(frozen.items()),
        uses=site.usage.of_fleet(),
        history=None if recent is None else _changes(recent),
        live="/",
        at=version,
    )


async def _read_now(call: Call) -> tuple[dict[str, Any], Sequence[Any] | None]:
    """What the farm keeps no copy of: freezes and the latest changes; None while Consul does not answer."""
    try:
        frozen = await overview.freezes(call.client, call.keys, call.clock.now())
        return dict(frozen), await AuditReader(call.client, call.keys).read(Filter(), HISTORY)
    except StoreUnavailable:
        return {}, None


def _reason(found: ItemList, line: ListLine) -> str:
    table = found.table([line.row])
    column = next((each for each in table.columns if each.title == "REASON"), None)
    return clean(column.text(table.rows[0])) if column is not None else ""
