"""The OpenAPI 3.1 description of the JSON API, made from the lists and the types of their records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from farmd.web.lists import ItemList, Shape
from farmd.web.paging import LARGEST_PAGE, PAGE
from store.audit import Audit
from store.version import VERSION

_REFERENCE = "#/components/schemas/{name}"
_WORDS = ("pause", "resume", "approve", "revert")
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
        "/v1/rollouts/{name}/{word}": _act(),
    }
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
        found[f"{name}List"] = _answer(
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
        found[f"{name}Page"] = _answer(item=reference, reason=_TEXT, beside=beside)
    audit = {"$ref": _REFERENCE.format(name="Audit")}
    broken = {"type": "array", "items": _TEXT}
    found["AuditRecords"] = _answer(items={"type": "array", "items": audit}, next=_TEXT, broken=broken)
    found["Explanation"] = _answer(name=_TEXT, id=_TEXT, items=_EXPLANATION)
    return {**found, "Error": _ERROR, "Change": _CHANGE}


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


def _answer(**properties: Any) -> dict[str, Any]:
    told = {"apiVersion": {"const": "farmd/v1"}, "kind": _TEXT, **properties}
    return {"type": "object", "properties": told, "required": list(told)}


def _get(summary: str, schema: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {"get": {"summary": summary, "parameters": parameters, "responses": _responses(schema)}}


def _act() -> dict[str, Any]:
    words = {"name": "word", "in": "path", "required": True, "schema": {"enum": list(_WORDS)}}
    body = {"type": "object", "properties": {"reason": _TEXT, "stage": _NUMBER}}
    said = {
        "summary": "Say something to a rollout; needs the token of an operator.",
        "security": [{"token": []}],
        "parameters": [*_named(), words],
        "requestBody": {"content": {"application/json": {"schema": body}}},
        "responses": _responses("Change"),
    }
    return {"post": said}


def _responses(schema: str) -> dict[str, Any]:
    def content(name: str) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": _REFERENCE.format(name=name)}}}

    return {
        "200": {"description": "The answer.", "content": content(schema)},
        "default": {"description": "Why there is none.", "content": content("Error")},
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
        "q": ("Words that all must occur.", _TEXT),
        "cursor": ("`next` of the page before.", _TEXT),
        "limit": ("At most so many items.", numbers),
    }


def _list_parameters() -> list[dict[str, Any]]:
    return _query(
        **_paged(),
        state=("Only those in this state.", _TEXT),
        sort=("A column, with - before it the other way round.", _TEXT),
        index=("Of an earlier answer: wait for a change.", _NUMBER),
        wait=("How long, such as 30s.", _TEXT),
    )


def _audit_parameters() -> list[dict[str, Any]]:
    fields = {name: (f"Only this {name}.", _TEXT) for name in ("item", "kind", "actor", "action")}
    return _query(**_paged(), **fields)
