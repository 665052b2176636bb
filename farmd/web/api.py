"""The JSON API under ``/v1``, and its description as OpenAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from farmd.kinds import KINDS
from farmd.runtime.wake import Wake, wait
from farmd.tables.manifests import without_values
from farmd.web import audit, html, pages, paging, planned
from farmd.web.connections import parked
from farmd.web.lists import ItemList, Shape
from farmd.web.paging import LARGEST_PAGE, PAGE
from farmd.web.services import INDEX_HEADER, WAIT_SECONDS, asked_index, asked_wait
from farmd.web.site import MOST_STREAMS
from farmd.web.visit import Visit, list_of, reader
from store.audit import Audit
from store.times import plain
from store.version import VERSION

# The OpenAPI 3.1 description of the JSON API, made from the lists and the types of their records.

_REFERENCE = "#/components/schemas/{name}"
_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_TIME = {"type": ["string", "null"], "format": "date-time"}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": _TEXT, "message": _TEXT, "hint": _TEXT},
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}
_CHANGE = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("apiVersion", "kind", "id", "name", "action"), _TEXT),
        **{name: {"type": "object"} for name in ("before", "after")},
        "changed": {"type": "boolean"},
    },
    "required": ["apiVersion", "kind", "id", "name", "action", "changed"],
}
_PLAN = {
    "type": "object",
    "properties": {
        "apiVersion": _TEXT,
        "kind": {"const": "Plan"},
        **dict.fromkeys(("name", "action", "token"), _TEXT),
        **{name: {"type": "object"} for name in ("before", "after")},
        **{name: {"type": "boolean"} for name in ("changed", "destructive")},
        "lines": {"type": "array", "items": _TEXT},
    },
    "required": ["apiVersion", "kind", "name", "action", "token", "changed", "destructive", "lines"],
}
_EXPLANATION = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"title": _TEXT, "rows": {"type": "array", "items": {"type": "object"}}},
        "required": ["title", "rows"],
    },
}


def document(lists: Iterable[ItemList]) -> dict[str, Any]:
    """The whole description."""
    known = list(lists)
    paths: dict[str, Any] = {
        "/v1/audit": _get("What happened, newest first.", "AuditRecords", _audit_parameters()),
    }
    for each in known:
        for act in planned.acts(each):
            paths[f"/v1/{each.path}/{{name}}/{act.word}"] = _planned(each, act)
    schemas = _schemas(known)
    for each in known:
        name = name_of(each)
        paths[f"/v1/{each.path}"] = _get(
            f"All {each.many}, a page at a time.", f"{name}List", _list_parameters()
        )
        paths[f"/v1/{each.path}/{{name}}"] = _get(f"One {each.one}, by its name.", f"{name}Page", _named())
        paths[f"/v1/{each.path}/{{name}}/explain"] = _get(
            "Why nodes get its pods or not, where it has any.", "Explanation", _named()
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "farmd", "version": VERSION, "description": "See docs/web.md."},
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def name_of(found: ItemList) -> str:
    """What the description calls an item of a list."""
    return found.one.title().replace(" ", "") + "Item"


def _schemas(lists: list[ItemList]) -> dict[str, Any]:
    shapes = {name_of(each): each.shape() for each in lists}
    types = [kind for shape in shapes.values() for kind in (shape.base, *shape.more.values()) if kind]
    _, found = msgspec.json.schema_components([*types, Audit], ref_template=_REFERENCE)
    for schema in found.values():
        if "properties" in schema:
            schema.update(_told(schema["properties"]))
    for name, shape in shapes.items():
        found[name] = _shaped(shape)
        reference = {"$ref": _REFERENCE.format(name=name)}
        found[f"{name}List"] = _described_answer(
            items={"type": "array", "items": reference},
            matching=_NUMBER,
            total=_NUMBER,
            states={"type": "object", "additionalProperties": _NUMBER},
            next=_TEXT,
            index=_NUMBER,
            broken={"type": "array", "items": _TEXT},
        )
        rows = {"type": "array", "items": {"type": "object"}}
        beside = {"type": "object", "additionalProperties": rows}
        found[f"{name}Page"] = _described_answer(item=reference, reason=_TEXT, beside=beside)
    audit = {"$ref": _REFERENCE.format(name="Audit")}
    broken = {"type": "array", "items": _TEXT}
    found["AuditRecords"] = _described_answer(
        items={"type": "array", "items": audit}, next=_TEXT, broken=broken
    )
    found["Explanation"] = _described_answer(name=_TEXT, id=_TEXT, items=_EXPLANATION)
    return {**found, "Error": _ERROR, "Change": _CHANGE, "Plan": _PLAN}


def _told(properties: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record in an answer: every one is there, and times are texts."""
    times = {name for name, field in properties.items() if field.get("format") == "date-time"}
    return {
        "properties": {name: _TIME if name in times else field for name, field in properties.items()},
        "required": list(properties),
    }


def _shaped(shape: Shape) -> dict[str, Any]:
    """An item: the fields of its record, and what is known besides."""
    schemas, _ = msgspec.json.schema_components(list(shape.more.values()), ref_template=_REFERENCE)
    own = {
        "type": "object",
        "properties": dict(zip(shape.more, schemas, strict=True)),
        "required": list(shape.more),
    }
    if shape.base is None:
        return own
    (base,), _ = msgspec.json.schema_components([shape.base], ref_template=_REFERENCE)
    return {"allOf": [base, own]}


def _described_answer(**properties: Any) -> dict[str, Any]:
    told = {"apiVersion": {"const": "farmd/v1"}, "kind": _TEXT, **properties}
    return {"type": "object", "properties": told, "required": list(told)}


def _get(summary: str, schema: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {"get": {"summary": summary, "parameters": parameters, "responses": _responses(schema)}}


def _planned(found: ItemList, act: planned.Act) -> dict[str, Any]:
    """An action whose plan is asked for first, and confirmed by its token."""
    fields = {"reason": _TEXT, "token": _TEXT, **({act.argument.name: {}} if act.argument else {})}
    token = "" if act.word in KINDS[found.family].acts_unseen else ", and the plan's token"
    plan = ("1: answer the plan and its token, and change nothing.", {"enum": ["1"]})
    body = {"type": "object", "properties": fields, "additionalProperties": False}
    said = {
        "summary": f"{act.word.capitalize()} one {found.one}; needs an operator{token}.",
        "security": [{"token": []}],
        "parameters": [*_named(), *_query(plan=plan)],
        "requestBody": {"content": {"application/json": {"schema": body}}},
        "responses": _responses("Change", "Plan"),
    }
    return {"post": said}


def _responses(*schemas: str) -> dict[str, Any]:
    def content(*names: str) -> dict[str, Any]:
        one, *others = [{"$ref": _REFERENCE.format(name=name)} for name in names]
        return {"application/json": {"schema": {"oneOf": [one, *others]} if others else one}}

    return {
        "200": {"description": "The answer.", "content": content(*schemas)},
        "default": {"description": "The error.", "content": content("Error")},
    }


def _named() -> list[dict[str, Any]]:
    return [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]


def _query(**said: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "description": text, "schema": schema}
        for name, (text, schema) in said.items()
    ]


def _paged() -> dict[str, tuple[str, dict[str, Any]]]:
    numbers = {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE}
    return {
        "q": ("Words that must all occur.", _TEXT),
        "cursor": ("`next` of the previous page.", _TEXT),
        "limit": ("Maximum number of items.", numbers),
    }


def _list_parameters() -> list[dict[str, Any]]:
    return _query(
        **_paged(),
        state=("Only those in this state.", _TEXT),
        sort=("A column; a leading - reverses the order.", _TEXT),
        index=("Index of an earlier answer: wait for a change.", _NUMBER),
        wait=("How long to wait, such as 30s.", _TEXT),
    )


def _audit_parameters() -> list[dict[str, Any]]:
    fields = {name: (f"Only this {name}.", _TEXT) for name in ("item", "kind", "actor", "action")}
    return _query(**_paged(), **fields)


# The JSON API under ``/v1``: the page's lists and items, the audit log, and explanations, for programs.
#
# ``farmd.web.api`` describes it. Fields are only added under one version. A list that is asked for with the
# ``index`` of an earlier answer is answered once it changed, like Consul's blocking queries.

FEW = 100
"""How many items are written without a thread."""


async def listed(visit: Visit) -> web.StreamResponse:
    """``GET /v1/controllers`` and the other lists."""
    found, said = list_of(visit), visit.request.query
    asked = paging.query(said)
    index = asked_index(said.get("index", "0"))
    with found.looking():
        await found.ready()
        if index == found.bell.version:
            await _changed(visit, found, asked_wait(said.get("wait", f"{WAIT_SECONDS:g}")))
            reader(visit.site, visit.request)  # the token may have ended meanwhile
            await found.ready()
        version = found.bell.version
        shown = await paging.found(found.lines(), asked, found.table([]).columns)
        table = found.table([line.row for line in shown.lines])
    counts = {
        "matching": shown.matching,
        "total": shown.total,
        "states": shown.states if found.states else {},
        "next": shown.next,
        "index": version,
        "broken": list(table.broken),
    }

    def answer() -> web.Response:
        items = [table.plain(row) for row in table.rows]
        return _answer(f"{table.kind}List", {"items": items} | counts, version)

    # Values alone, and records are never changed in place.
    return await asyncio.to_thread(answer) if len(table.rows) > FEW else answer()


async def _changed(visit: Visit, found: ItemList, seconds: float) -> None:
    """Wait for a change of a list, for so long at most."""
    if len(visit.site.streams) >= MOST_STREAMS:
        raise web.HTTPTooManyRequests(
            text=f"{MOST_STREAMS} requests are already waiting here, try again later"
        )
    wake = Wake()
    visit.site.streams.add(wake)
    try:
        with parked(visit.request), found.bell.listening(wake):
            await wait(wake, visit.site.farm.clock, seconds)
    finally:
        visit.site.streams.discard(wake)


async def item(visit: Visit) -> web.StreamResponse:
    """``GET /v1/controllers/NAME``: the item, and beside it such as its pods, by what they are."""
    found = list_of(visit)
    with found.looking():
        await found.ready()
        described = await found.described(visit.site.call(), visit.request.match_info["name"])
    table = found.table([described.row])
    beside = {each.kind: [each.plain(row) for row in each.rows] for each in described.shown.values()}
    body = {"item": table.plain(described.row), "reason": described.reason, "beside": beside}
    return _answer(table.kind, body)


async def explained(visit: Visit) -> web.StreamResponse:
    """``GET /v1/controllers/NAME/explain``."""
    described, tables = await pages.explanation(visit)
    items = [{"title": title, "rows": [table.plain(row) for row in table.rows]} for title, table in tables]
    return _answer("Explanation", {"name": described.name, "id": described.id, "items": items})


async def audited(visit: Visit) -> web.StreamResponse:
    """``GET /v1/audit``."""
    found = await audit.read(visit.site.farm, visit.site.audit.reading, visit.request.query)
    body = {"items": plain(found.records), "next": found.next, "broken": list(found.broken)}
    return _answer("AuditRecordList", body)


async def described(visit: Visit) -> web.StreamResponse:
    """``GET /v1/openapi.json``."""
    return html.as_json(document(visit.site.lists.values()))


def _answer(kind: str, body: dict[str, Any], index: int = 0) -> web.Response:
    headers = {INDEX_HEADER: str(index)} if index else {}
    return html.as_json({"apiVersion": "farmd/v1", "kind": kind, **without_values(body)}, headers=headers)
