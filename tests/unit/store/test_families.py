"""What is derived from the families of records, and must not change under a cluster that stands."""

from __future__ import annotations

import pytest

from store import families
from store.keys import Keys

KEYS = Keys("t/")
WHOLE = {
    "agents",
    "daemonsets",
    "deployments",
    "failsafe",
    "farms",
    "intent",
    "jobs",
    "locks",
    "nodes",
    "reserved",
    "rollouts",
    "work",
}
BY_DIGIT = {"rcs": "", "pods": "", "reality": "/"}


def test_r20_the_sentinels_of_a_cluster() -> None:
    expected = {f"t/{tree}/.present" for tree in WHOLE | BY_DIGIT.keys()}
    expected |= {"t/history/.present", "t/services/.present"}  # not watched, but they refer to manifests
    expected |= {f"t/{tree}/{d}{end}.present" for tree, end in BY_DIGIT.items() for d in "0123456789abcdef"}
    assert sorted(families.sentinels(KEYS)) == sorted(expected)


def test_r24_references_are_read_where_they_come_from_before_where_they_go() -> None:
    names = [family.name for family in families.spreading()]
    sources = ["deployments", "rollouts", "services", "daemonsets", "jobs", "rcs"]
    assert names == [*sources, "work", "history", "pods", "intent", "reality"]


def test_r24_what_owns_pods_may_refer_to_manifests() -> None:
    assert all(family.refers for family in families.owners())


@pytest.mark.parametrize(
    ("family", "key", "fits"),
    [
        ("rcs", "t/rcs/0a", True),
        ("rcs", "t/rcs/zz", False),
        ("rcs", "t/rcs/0a/b", False),
        ("pods", "t/pods/0a/node/web", True),
        ("pods", "t/pods/0a/node", False),
        ("reality", "t/reality/3/node/web", True),
        ("reality", "t/reality/3//web", False),
        ("daemonsets", "t/daemonsets/zz", True),
        ("work", "t/work/rcs/0a", True),
        ("nodes", "t/nodes/node/", False),
    ],
)
def test_r10_a_key_that_no_record_can_have_is_told_apart(family: str, key: str, fits: bool) -> None:
    assert families.well_formed(KEYS, family, key) is fits
