"""What people are told of a value beyond its type's limits: words, and never the pattern of a type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from farmd.kinds import KINDS
from store import codec
from store.errors import InputInvalid, RecordInvalid
from store.families import FAMILIES
from store.policies import Policy
from store.rollouts import Rollout

MISTAKES = [
    ({"minimum": "120%"}, "minimum: found '120%', expected a whole number of at least 0 or a share from 0%"),
    ({"minimum": -1}, "minimum: found -1, expected a whole number of at least 0 or a share from 0% to 100%"),
    ({"tolerate": "many"}, "tolerate: found 'many', expected a whole number of at least 0 or a share"),
    ({"stages": ["5 %"]}, "stages[0]: found '5 %', expected a mapping or a whole number of at least 0 or a"),
    ({"stages": [{"to": "5"}]}, "stages[0].to: found '5', expected a whole number of at least 0 or a share"),
    ({"stages": [{"to": 1, "bake": -1}]}, "stages[0].bake: found -1, expected a number of at least 0"),
    ({"min_healthy_time": float("nan")}, "min_healthy_time: found .nan, expected a number of at least 0"),
    ({"progress_deadline": 0}, "progress_deadline: found 0, expected a number above 0"),
    ({"on_failure": "explode"}, "on_failure: found 'explode', expected one of pause, revert"),
]


@pytest.mark.parametrize(("data", "line"), MISTAKES, ids=[line.split(":")[0] for _, line in MISTAKES])
def test_a_value_beyond_its_limits_is_told_in_words(data: Any, line: str) -> None:
    with pytest.raises(InputInvalid) as error:
        codec.parse_input(Policy, data, "web.yaml")
    assert error.value.message.startswith(f"web.yaml: {line}")


def test_a_record_that_was_damaged_by_hand_is_told_in_words_and_may_have_newer_fields() -> None:
    damaged = b'{"id": "aa", "newer": 1, "policy": {"minimum": "120%", "newer": 1}}'
    with pytest.raises(RecordInvalid) as error:
        codec.decode(Rollout, damaged, "farmd/rollouts/aa")
    assert error.value.message == "farmd/rollouts/aa: name: missing, expected text"
    with pytest.raises(RecordInvalid, match="rollouts/aa: minimum: found '120%', expected a whole number"):
        codec.decode(Policy, b'{"minimum": "120%", "newer": 1}', "farmd/rollouts/aa")


def patterns(info: Any, words: bool = False) -> Iterator[tuple[str, bool]]:
    """Each pattern in a type, and whether its type says in words what it means."""
    if isinstance(info, inspect.Metadata):
        yield from patterns(info.type, "expected" in (info.extra or {}))
        return
    if getattr(info, "pattern", None):
        yield info.pattern, words
    for name in ("types", "item_type", "key_type", "value_type", "fields"):
        found = getattr(info, name, ())
        for part in found if isinstance(found, tuple) else (found,):
            yield from patterns(getattr(part, "type", part) if name == "fields" else part)


def test_every_pattern_of_every_file_and_record_has_words() -> None:
    nouns = [kind.asked() for kind in KINDS.values() if kind.asked]
    types = [noun.file.spec for noun in nouns if hasattr(noun, "file")]
    types += [family.record for family in FAMILIES.values() if family.record is not None]
    found = [each for kind in types for each in patterns(msgspec.inspect.type_info(kind))]
    assert found
    assert all(words for _, words in found)
