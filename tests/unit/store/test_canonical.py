"""Equal records have equal bytes, however they were read (R24)."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from farmd import kinds  # imports all records
from farmd.cli.output import as_json, as_yaml
from farmd.commands import documents
from farmd.replication.commands import RC
from store import codec, manifests, mistakes, signatures
from store.apps import ResourceTracker
from store.canonical import canonical
from store.manifests import Manifest
from store.operations import CatalogOperation, Operation
from tests.people import KEYS, hello, parsed, person

assert kinds
assert signatures


def records(kind: type[msgspec.Struct] = msgspec.Struct) -> Iterator[type[msgspec.Struct]]:
    """All records of the store, and what they consist of."""
    for each in kind.__subclasses__():
        if each.__module__.startswith("store.") and each.__struct_config__.omit_defaults:
            yield each
        yield from records(each)


UNLIKE = {
    Operation,
    CatalogOperation,
    ResourceTracker,
}  # no records; one whose fields must agree with each other
RECORDS = sorted(set(records()) - UNLIKE, key=lambda kind: f"{kind.__module__}.{kind.__name__}")


def another(value: Any) -> Any:
    """An equal value that is another object, where Python allows that."""
    if isinstance(value, float):
        return float(repr(value))
    if isinstance(value, str):
        return json.loads(json.dumps(value)) if len(value) != 1 else msgspec.json.decode(json.dumps(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return int(repr(value))
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: another(getattr(value, name)) for name in value.__struct_fields__})
    return copy.copy(value)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_record_that_names_its_defaults_has_the_bytes_of_one_that_does_not(
    kind: type[msgspec.Struct],
) -> None:
    fields = msgspec.structs.fields(kind)
    least = {each.name: _any(each.type) for each in fields if each.required}
    told = {each.name: another(each.default) for each in fields if each.default is not msgspec.NODEFAULT}
    assert codec.encode(kind(**least, **told)) == codec.encode(kind(**least))


def _any(kind: Any) -> Any:
    """Some value of the type of a field without a default."""
    kind = getattr(kind, "__origin__", kind) if hasattr(kind, "__metadata__") else kind
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{each.name: _any(each.type) for each in msgspec.structs.fields(kind) if each.required})
    if get_args(kind) and get_origin(kind) not in (list, dict):
        return get_args(kind)[0] if isinstance(get_args(kind)[0], str) else _any(get_args(kind)[0])
    return (get_origin(kind) or kind)()


# -- people's documents --------------------------------------------------------------------------
TEXT = st.sampled_from(["", "/", "x", "web", "/health", "ä"])


def said(info: inspect.Type) -> st.SearchStrategy[Any]:
    """Plain data of a type, as a file would hold it."""
    if isinstance(info, inspect.Metadata):
        return said(info.type)
    if isinstance(info, inspect.UnionType):
        return st.one_of(*map(said, info.types))
    if isinstance(info, inspect.StructType):
        every = {each.encode_name: _field(each) for each in info.fields}
        must = {each.encode_name for each in info.fields if each.required}
        return st.fixed_dictionaries(
            {name: every[name] for name in must},
            optional={name: each for name, each in every.items() if name not in must},
        )
    if isinstance(info, inspect.DictType):
        return st.dictionaries(st.sampled_from(["a", "b"]), said(info.value_type), max_size=2)
    if isinstance(info, inspect.ListType):
        return st.lists(said(info.item_type), max_size=2)
    if isinstance(info, inspect.LiteralType):
        return st.sampled_from(info.values)
    plain: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
        inspect.StrType: TEXT,
        inspect.BoolType: st.booleans(),
        inspect.IntType: st.integers(0, 2**40),
        inspect.FloatType: st.one_of(
            st.integers(0, 10**6), st.floats(0, 1e9), st.just(-0.0), st.sampled_from([1, 1.0, 60])
        ),
        inspect.NoneType: st.none(),
    }
    return plain[type(info)]


def _field(field: inspect.Field) -> st.SearchStrategy[Any]:
    """Values of a field, its default among them more often than chance would have it."""
    if field.default is msgspec.NODEFAULT or field.default is None:
        return said(field.type)
    return st.one_of(st.just(msgspec.to_builtins(field.default)), said(field.type))


def reordered(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: reordered(data[key]) for key in reversed(data)}
    return data


@given(said(mistakes.described(Manifest)))
def test_a_document_has_one_digest_whatever_way_it_takes(pod: dict[str, Any]) -> None:
    document = hello(replicas=2) | {"pod": pod}

    def read(text: str, source: str) -> bytes:
        ((_, data),) = documents.parse(text, source)
        return manifests.canonical(codec.parse_input(RC.file.spec, data, source).pod)

    body = read(json.dumps(document), "f.json")
    assert read(yaml.safe_dump(document, allow_unicode=True), "f.yaml") == body
    assert read(yaml.safe_dump(reordered(document), default_flow_style=True), "f.yaml") == body

    stored = codec.decode(Manifest, body, "manifest")
    assert manifests.canonical(stored) == body
    assert canonical(stored) is stored
    explicit = msgspec.json.encode(msgspec.structs.asdict(stored))
    assert manifests.canonical(codec.decode(Manifest, explicit, "manifest")) == body

    spec = codec.parse_input(RC.file.spec, document, "f")
    record = RC.file.build(spec, "ab12", manifests.digest(body))
    exported = RC.file.as_file(record, stored)
    assert read(as_yaml(exported), "export.yaml") == read(as_json(exported), "export.json") == body


# -- what earlier versions stored ----------------------------------------------------------------
POD = {"id": "hello", "command": ["x"], "health": {"type": "http", "port": "a"}}
TOLD = b'{"command":["x"],"health":{"path":"/","port":"a","type":"http"},"id":"hello","restart":{}}'


async def test_a_stored_manifest_that_says_the_same_keeps_its_digest() -> None:
    pod = parsed(POD | {"ports": {"a": {}}}, "f")
    body = TOLD.replace(b',"restart"', b',"ports":{"a":{}},"restart"')
    async with person() as call:
        await call.client.transaction([manifests.ensure(KEYS, body)])
        sha = manifests.digest(body)
        assert await manifests.kept(call.client, KEYS, pod, ["f" * 64, sha]) == body
        other = msgspec.structs.replace(pod, args=["y"])
        assert await manifests.kept(call.client, KEYS, other, [sha]) == manifests.canonical(other)
