"""Points in time: every field of a record that is one says so, and JSON shows it as RFC 3339."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from farmd.overview import NodeRow, PodRow
from store.audit import Audit
from store.families import FAMILIES
from store.times import Time, plain, rfc3339

FOUND: set[type[Any]] = {family.record for family in FAMILIES.values() if family.record is not None}
FOUND |= {family.status for family in FAMILIES.values()} | {Audit, NodeRow, PodRow}
# A length of time by the name that Kubernetes gave it.
LENGTHS = {"Job.active_deadline"}
WORDS = {"at", "since", "until", "started", "deadline", "before", "seen", "ended"}


def unmarked(info: inspect.Type, path: str) -> Iterator[str]:
    """Numbers that are points in time by their names, and not by their types."""
    for inner in getattr(info, "types", ()):
        yield from unmarked(inner, path)
    if isinstance(info, inspect.ListType):
        yield from unmarked(info.item_type, path)
    elif isinstance(info, inspect.DictType):
        yield from unmarked(info.value_type, path)
    elif isinstance(info, inspect.StructType):
        for field in info.fields:
            yield from unmarked(field.type, f"{path}.{field.name}")
    elif (
        path not in LENGTHS
        and isinstance(info, inspect.FloatType)
        and WORDS & set(path.rpartition(".")[2].split("_"))
    ):
        yield path


@pytest.mark.parametrize(
    "kind", sorted(FOUND, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_every_point_in_time_of_a_record_has_the_type_of_one(kind: type[Any]) -> None:
    assert list(unmarked(inspect.type_info(kind), kind.__name__)) == []


class Noted(msgspec.Struct):
    at: Time
    seconds: float = 90.0
    more: list[Any] = []
    named: dict[str, Any] = {}


def test_json_shows_times_as_rfc_3339_and_other_numbers_as_they_are() -> None:
    first, second = Noted(1763688000.25), Noted(0.0)
    shown = plain(Noted(1763688000.0, more=[first], named={"x": second}))
    assert shown["at"] == "2025-11-21T01:20:00.000Z"
    assert shown["seconds"] == 90.0
    assert shown["more"][0]["at"] == "2025-11-21T01:20:00.250Z"
    assert shown["named"]["x"]["at"] is None


@pytest.mark.parametrize(
    ("at", "text"),
    [(-5.0, "1970-01-01T00:00:00Z"), (1e300, "9999-12-31T23:59:59Z"), (1.9, "1970-01-01T00:00:01Z")],
)
def test_a_record_with_an_absurd_time_is_shown_all_the_same(at: float, text: str) -> None:
    assert rfc3339(at) == text
