"""Objects that come to an app from others: from other apps, from other tools, and by another version."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from farmd.apps.reader import Index
from store import codec, operations
from store.apps import ALL, KIND, MAX_WAITS, DispatchState, TypedReference
from store.errors import TransactionRejected
from store.ports import Request
from store.work import Work
from tests.app_fleet import KEYS, app_fleet, rc
from tests.app_worlds import World, entry, world


def test_more_objects_than_one_state_lists_move_from_app_to_app_without_a_gap() -> None:
    moving = [entry(f"rc/m{number:02}") for number in range(2 * MAX_WAITS + 3)]
    found = world((*moving, entry("rc/stays")))
    found.apply("next", *moving, adopt=["*"])
    found.run("next")
    assert len(found.apps["next"].state.waits) == MAX_WAITS
    assert found.apps["next"].state.waits[-1] == ALL
    found.apply("shop", entry("rc/stays"), prune=True, mass=True)
    for _ in range(12):
        found.cycle("next")
        found.cycle("shop")
        found.tick()
    assert found.owned("next") == {str(each.ref) for each in moving}
    assert "remove" not in [verb for verb, _ in found.verbs()]


def test_objects_of_more_apps_than_a_state_lists_objects_move_without_a_gap() -> None:
    found, apps = World(), [f"old{number:02}" for number in range(MAX_WAITS + 5)]
    for app in apps:
        found.apply(app, entry(f"rc/of-{app}"))
    found.run()
    found.apply("next", *(entry(f"rc/of-{app}") for app in apps), adopt=["*"])
    found.run("next")
    for app in apps:
        found.say(app, deleting="objects")
    found.run(*reversed(apps), "next")
    assert found.owned("next") == {f"rc/of-{app}" for app in apps}
    assert "remove" not in [act.verb for _, act in found.acts]


def test_an_app_hands_over_in_a_circle_also_to_one_whose_objects_its_state_does_not_list() -> None:
    found = world((*(entry(f"rc/a{number:02}") for number in range(MAX_WAITS)), entry("rc/busy")))
    found.apply("next", entry("rc/b"))
    found.apply("last", entry("rc/z"))
    found.run()
    wishes = [entry(f"rc/a{number:02}") for number in range(MAX_WAITS)]
    found.apply("next", *wishes, entry("rc/z"), adopt=["*"], prune=True, mass=True)
    found.apply("last", entry("rc/b"), adopt=["*"], prune=True, mass=True)
    found.run("next", "last")
    assert found.things["rc/b"].owner == "apps/last"


def test_apps_swap_objects_for_which_also_an_app_of_an_earlier_name_waits() -> None:
    found = world((entry("rc/a"), entry("rc/stays")))
    found.apply("next", entry("rc/b"))
    found.run()
    found.apply("another", entry("rc/a"), entry("rc/b"), adopt=["*"])
    found.run("another")
    found.apply("next", entry("rc/a"), adopt=["*"], prune=True, mass=True)
    found.apply("shop", entry("rc/b"), entry("rc/stays"), adopt=["*"], prune=True, mass=True)
    found.run("next", "shop")
    assert (found.things["rc/a"].owner, found.things["rc/b"].owner) == ("apps/another", "apps/shop")


@pytest.mark.parametrize(("adopt", "owner"), [([], "Helm release shop"), (["rc/b"], "apps/shop")])
def test_an_object_of_another_tool_comes_by_a_persons_word_alone(adopt: list[str], owner: str) -> None:
    found = World()
    found.put("rc/b", owner="Helm release shop", fields={"value": 1})
    found.apply("shop", entry("rc/b", 1), adopt=adopt)
    found.run()
    assert found.things["rc/b"].owner == owner


def test_an_object_keeps_its_identity_through_versions_of_its_api() -> None:
    """KubeVela removed an object whose file named another version of the same group."""
    before, after = (
        TypedReference(api_version=f"shop.example/{version}", kind="Row", namespace="n", name="a")
        for version in ("v1beta1", "v1")
    )
    other = TypedReference(api_version="till.example/v1", kind="Row", namespace="n", name="a")
    assert str(before) == str(after) != str(other)


async def test_an_app_removes_what_it_kept_once_another_one_waits_only_for_others_objects() -> None:
    async with app_fleet("n1") as fleet:

        async def waits(*behind: str) -> None:
            state = DispatchState(waits=["rc/x", ALL], behind=list(behind))
            await fleet.fleet.put(KEYS.work(KIND, "next"), Work(dispatch=state))

        await waits("beside", "shop")
        await fleet.apply(rc("a", replicas=0), rc("b", replicas=0))
        await fleet.reached(1)
        await fleet.apply(rc("a", replicas=0), prune=True)
        await fleet.told("sweeping")
        await fleet.clock.advance(30)
        assert set(await fleet.records()) == {"a", "b"}
        await waits("beside")
        await fleet.reached(2, within=30)
        assert set(await fleet.records()) == {"a"}


async def test_an_object_is_handed_only_while_the_other_app_waits_for_it() -> None:
    """What that app waited for a moment ago it may want no more, and would never collect."""
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web"), rc("db"))
        await fleet.reached(1)
        await fleet.apply(rc("web"), app="next", adopt=[ALL])
        await fleet.told("waiting until", app="next")
        key, tried = KEYS.record("rcs", (await fleet.records())["web"].id), 0
        state = await fleet.state("next")

        async def changes_its_mind(request: Request) -> None:
            nonlocal tried
            if request.path == "/v1/txn" and all(of in request.body for of in (key.encode(), b"/apps/shop")):
                tried += 1
                if tried == 1:
                    await fleet.fleet.put(KEYS.work(KIND, "next"), Work(dispatch=replace(state, waits=[])))

        fleet.fleet.farms["f0"].faults.before = changes_its_mind
        await fleet.apply(rc("db"), prune=True, mass=True)
        await fleet.reached(1, app="next")
        assert tried == 2


async def test_a3_an_app_that_hands_over_in_a_swap_removes_nothing_before_its_last_step() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("x"), rc("old"), rc("keep"), rc("stays"))
        await fleet.apply(rc("y"), app="next")
        await fleet.reached(1)
        await fleet.reached(1, app="next")
        await fleet.apply(rc("x"), app="next", adopt=[ALL], prune=True, mass=True)
        await fleet.told("waiting until", app="next")
        slow = rc("slow", "--bad")
        await fleet.apply(rc("y"), rc("keep"), rc("stays"), slow, adopt=[ALL], prune=True, deadline=900.0)
        await fleet.reached(2, app="next")
        await fleet.clock.advance(30)
        found = await fleet.records()
        assert (found["x"].part_of, found["y"].part_of) == ("apps/next", "apps/shop")
        assert "old" in found
        assert not found["old"].deleting
        assert not [each for each in await fleet.fleet.audits("app.sweep") if "remove" in each.after]


async def test_r31_an_app_that_ends_is_handed_nothing_at_its_end() -> None:
    """Another farm hands over while the app waits, and the app's farm has not heard of that at its end."""
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web"))
        await fleet.reached(1)
        await fleet.apply(rc("web"), app="next", adopt=[ALL])
        await fleet.told("waiting until", app="next")
        waits, web = await fleet.fleet.client.read(KEYS.work(KIND, "next")), (await fleet.records())["web"]
        assert waits is not None
        record = codec.encode(replace(web, part_of="apps/next"))
        hand = [operations.check_index(waits.key, waits.modify_index)]
        hand += [operations.put(KEYS.record("rcs", web.id), record)]
        tried = []

        async def hands_over(request: Request) -> None:
            if request.path == "/v1/txn" and KEYS.trackers("next").encode() in request.body and not tried:
                tried.append(hand)
                with suppress(TransactionRejected):
                    await fleet.fleet.client.transaction(hand)

        fleet.fleet.farms["f0"].faults.before = hands_over
        await fleet.say("next", deleting="objects")
        await fleet.gone("next")
        assert tried
        assert (await fleet.records())["web"].part_of == "apps/shop"


async def test_an_index_keeps_nothing_of_an_app_that_waits_no_more() -> None:
    async with app_fleet("n1") as fleet:
        context: Any = SimpleNamespace(caches=fleet.fleet.farms["f0"].farm.caches, keys=KEYS)
        index = Index(context)
        empty = [dict(each) for each in _of_waits(index)]
        await fleet.fleet.put(
            KEYS.work(KIND, "x"), Work(dispatch=DispatchState(waits=["rc/a"], behind=["y"]))
        )
        await fleet.clock.advance(1)
        assert all(_of_waits(index))
        await fleet.call.client.delete(KEYS.work(KIND, "x"))
        await fleet.clock.advance(1)
        assert [dict(each) for each in _of_waits(index)] == empty


def _of_waits(index: Index) -> tuple[Mapping[str, object], ...]:
    return index.waits, index.behind, index._waited
