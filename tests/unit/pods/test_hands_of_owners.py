"""Who changes the pods of an owner, as its record counts it: a property over all that managers may do."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from farmd.deploy import owners
from farmd.work.hands import freed, passed
from store.rcs import ReplicationController

CHANGES = {
    "take": lambda owner: passed(owner, taken=True),
    "lend": lambda owner: passed(owner, taken=False),
    "deploy": lambda owner: owners.taken(owner, "d1"),
    "free": freed,
}


@given(st.lists(st.sampled_from(sorted(CHANGES)), max_size=12))
def test_r14_hands_grow_by_one_with_each_change_of_taken_and_with_nothing_else(words: list[str]) -> None:
    owner = ReplicationController(id="1", name="web", manifest="m", replicas_desired=1)
    for word in words:
        after = msgspec.structs.replace(owner, **CHANGES[word](owner))
        assert after.hands - owner.hands == (after.taken != owner.taken)
        owner = after
    assert owner.hands % 2 == owner.taken
