"""What is derived from the families of records, and must not change under a cluster that stands."""

from __future__ import annotations

import pytest

from store import families
from store.families import Family
from store.keys import Keys

KEYS = Keys("t/")
WHOLE = {"agents", "daemonsets", "failsafe", "farms", "intent", "locks", "nodes", "reserved", "work"}
BY_DIGIT = {"rcs": "", "pods": "", "reality": "/"}


def test_r20_the_sentinels_that_every_cluster_has() -> None:
    expected = {f"t/{tree}/.present" for tree in WHOLE | BY_DIGIT.keys()}
    expected |= {f"t/{tree}/{d}{end}.present" for tree, end in BY_DIGIT.items() for d in "0123456789abcdef"}
    first = [family for family in families.FAMILIES.values() if not family.younger]
    assert sorted(families.sentinels(KEYS, first)) == sorted(expected)


@pytest.mark.parametrize("family", families.younger(), ids=lambda family: family.name)
def test_r20_a_younger_family_that_is_watched_or_refers_to_manifests_has_a_sentinel(
    family: Family[object],
) -> None:
    wanted = family.watched != "no" or family.refers
    assert (f"t/{family.name}/.present" in families.sentinels(KEYS)) == bool(wanted)


def test_r24_references_are_read_where_they_come_from_before_where_they_go() -> None:
    *sources, work, history, pods, intent, reality = families.spreading()
    derived = (work, history, pods, intent, reality)
    assert [family.name for family in derived] == ["work", "history", "pods", "intent", "reality"]
    last = max(place for place, family in enumerate(sources) if not family.owns_pods)
    assert all(family.owns_pods for family in sources[last + 1 :])
    assert all(family.named for family in sources)
    assert {*families.owners()} <= {*sources[last + 1 :]}


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
