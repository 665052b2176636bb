"""The record of a replication controller: what decodes, and what a rewrite keeps (p2 rc/fields)."""

from __future__ import annotations

import json

import msgspec
import pytest

from store import codec
from store.entry import Entry, Stored
from store.errors import RecordInvalid
from store.keys import Keys
from store.named import decode_named
from store.rcs import ReplicationController

GOOD = {"id": "ab12", "name": "hello", "manifest": "f" * 64, "replicas_desired": 0}


def decode(entry: Entry) -> Stored[ReplicationController]:
    return decode_named(ReplicationController, Keys(), entry)


def entry(value: object, key: str = "farmd/rcs/ab12") -> Entry:
    return Entry(key, value if isinstance(value, bytes) else json.dumps(value).encode(), 7)


def test_a_desired_count_of_zero_is_legal() -> None:
    assert decode(entry(GOOD)).record.replicas_desired == 0


def test_a_record_without_a_minimum_time_gets_the_default() -> None:
    """It was written before the field existed: 10 s from the first sight only make a farm wait longer."""
    assert decode(entry(GOOD)).record.min_healthy_time == 10.0
    assert (
        decode_named(
            ReplicationController, Keys(), entry(GOOD | {"min_healthy_time": 0})
        ).record.min_healthy_time
        == 0.0
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"replicas_desired": None}, "replicas_desired"),
        ({"replicas_desired": -1}, "replicas_desired"),
        ({"replicas_desired": "3"}, "replicas_desired"),
        ({"replicas_desired": 1.5}, "replicas_desired"),
        ({"manifest": ""}, "manifest"),
        ({"replicas_per_node": 0}, "replicas_per_node"),
        ({"max_unavailable": 0}, "max_unavailable"),
        ({"min_healthy_time": -1}, "min_healthy_time"),
        ({"strategy": "sometimes"}, "strategy"),
        ({"on_lost": 7}, "on_lost"),
        ({"id": "cd34"}, "id"),
    ],
)
def test_a_record_that_cannot_be_meant_names_key_and_field(change: dict[str, object], named: str) -> None:
    with pytest.raises(RecordInvalid) as caught:
        decode(entry(GOOD | change))
    assert "farmd/rcs/ab12" in caught.value.message
    assert named in caught.value.message


@pytest.mark.parametrize("missing", ["replicas_desired", "manifest", "id", "name"])
def test_the_count_and_what_identifies_a_record_are_required(missing: str) -> None:
    with pytest.raises(RecordInvalid, match=missing):
        decode_named(
            ReplicationController,
            Keys(),
            entry({name: value for name, value in GOOD.items() if name != missing}),
        )


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"<html>"])
def test_what_is_no_record_at_all_is_one_line(value: bytes) -> None:
    with pytest.raises(RecordInvalid) as caught:
        decode(entry(value))
    assert "\n" not in caught.value.message


def test_a_zero_count_is_written_out_so_that_it_can_be_read_again() -> None:
    record = ReplicationController(id="ab12", name="hello", manifest="f" * 64, replicas_desired=0)
    assert json.loads(codec.encode(record))["replicas_desired"] == 0


def test_a_rewrite_keeps_fields_of_a_newer_version() -> None:
    stored = decode(entry(GOOD | {"from_the_future": {"a": [1, 2]}}))
    changed = msgspec.structs.replace(stored.record, replicas_desired=5)
    after = json.loads(codec.rewrite(changed, stored.raw))
    assert after["from_the_future"] == {"a": [1, 2]}
    assert after["replicas_desired"] == 5
