"""The dispatcher as KubeVela has it: what a call without a previous revision leaves, and when it collects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from farmd.apps.facts import Act, ApplicationRevision
from farmd.apps.writes import AppManifestsDispatcher, GCHandler
from store.apps import Entry
from tests.app_worlds import World, entry, ref, world

OLD, NEW = entry("rc/old"), entry("rc/new")


class Carried:
    """Changes of a world; what is ``stuck`` must wait."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done: list[Act] = []
        self.stuck: dict[str, str] = {}

    async def __call__(self, acts: Sequence[Act]) -> Mapping[str, str]:
        self.done += acts
        return {str(act.ref): self.stuck[str(act.ref)] for act in acts if str(act.ref) in self.stuck}


def upgrade(found: World) -> tuple[AppManifestsDispatcher, Carried, Mapping[str, Entry]]:
    """The dispatcher of a revision with the new object in place of the old one, which stands."""
    found.apply("shop", NEW, prune=True, mass=True)
    found.put("rc/new", "apps/shop", fields={"value": 0})
    shot, carried = found.snapshot("shop"), Carried(found)
    revision = ApplicationRevision(app="shop", number=2)
    made = AppManifestsDispatcher(revision, shot.wanted, carried, GCHandler(shot, carried))
    return made, carried, shot.former


CREATE = Act("create", ref("rc/more"), entry("rc/more"))


async def test_without_a_previous_revision_nothing_is_collected() -> None:
    made, carried, _ = upgrade(world((OLD,)))
    assert made.end_and_gc(None) is made
    assert made.start_and_skip_gc(None) is made
    assert await made.dispatch([CREATE]) == {}
    assert carried.done == [CREATE]


async def test_while_it_is_started_nothing_is_collected_and_in_the_end_a_dispatch_of_nothing_is() -> None:
    made, carried, former = upgrade(world((OLD,)))
    await made.start_and_skip_gc(former).dispatch([CREATE])
    await made.end_and_gc(None).dispatch([])  # None leaves it as it is: nothing is collected yet
    assert carried.done == [CREATE]
    await made.end_and_gc(former).dispatch([])
    assert [(act.verb, str(act.ref)) for act in carried.done] == [("create", "rc/more"), ("remove", "rc/old")]


async def test_a_previous_revision_of_none_changes_nothing_of_what_was_said_before() -> None:
    made, carried, former = upgrade(world((OLD,)))
    await made.start_and_skip_gc(former).end_and_gc(None).dispatch([])
    assert carried.done == []
    await made.end_and_gc(former).start_and_skip_gc(None).dispatch([])
    assert [act.verb for act in carried.done] == ["remove"]


async def test_all_is_applied_before_the_first_removal_and_nothing_removed_while_something_waits() -> None:
    made, carried, former = upgrade(world((OLD,)))
    carried.stuck = {"rc/more": "locked"}
    assert await made.end_and_gc(former).dispatch([CREATE]) == {"rc/more": "locked"}
    assert [act.verb for act in carried.done] == ["create"]
    carried.stuck = {}
    await made.dispatch([CREATE])
    assert [act.verb for act in carried.done] == ["create", "create", "remove"]


@pytest.mark.parametrize(("owner", "verbs"), [("apps/shop", ["remove"]), ("apps/other", []), ("", [])])
async def test_only_what_bears_the_mark_of_the_app_is_collected(owner: str, verbs: list[str]) -> None:
    found = world((OLD,))
    found.things["rc/old"].owner = owner
    made, carried, former = upgrade(found)
    await made.end_and_gc(former).dispatch([])
    assert [act.verb for act in carried.done] == verbs


async def test_a_revision_that_follows_itself_collects_nothing() -> None:
    found = world((OLD,))
    found.apply("shop", OLD, prune=True)
    shot, carried = found.snapshot("shop"), Carried(found)
    revision = ApplicationRevision(app="shop", number=2)
    made = AppManifestsDispatcher(revision, shot.wanted, carried, GCHandler(shot, carried))
    assert await made.end_and_gc(shot.former).dispatch([]) == {}
    assert carried.done == []


def test_a_revision_is_called_as_kubevela_calls_it() -> None:
    revision = ApplicationRevision(app="shop", number=3, namespace="prod")
    assert (revision.name, revision.tracker) == ("shop-v3", "shop-v3-prod")
