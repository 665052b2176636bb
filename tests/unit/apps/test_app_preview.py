"""What a preview shows is what farms do when nobody interferes, and what it says where something does."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from farmd.apps.facts import Live
from farmd.apps.plan import decide, play
from store.apps import Entry, TypedReference
from tests.app_worlds import World, entry, world

NAMES = tuple(f"rc/{name}" for name in "abcdef") + ("job/g", "job/h")
TREATED = {
    "wave": (0, 0, 1, -1),
    "on_remove": ("delete", "delete", "keep"),
    "apply": ("always", "always", "once"),
}


def documents(rng: random.Random) -> list[Entry]:
    """Some objects; each may wait for those before it in its wave."""
    found: list[Entry] = []
    for name in rng.sample(NAMES, rng.randint(1, len(NAMES))):
        said = {field: rng.choice(values) for field, values in TREATED.items()}
        before = [str(each.ref) for each in found if each.wave == said["wave"]]
        after = rng.sample(before, rng.randint(0, min(2, len(before))))
        found.append(entry(name, rng.randint(0, 2), after=after, **said))
    return found


def disturbed(found: World, rng: random.Random) -> None:
    """Objects of nobody's, and of the app's that differ or are gone; jobs take no change."""
    for name in NAMES:
        thing = found.things.get(name)
        if thing is None:
            if rng.random() < 0.3:
                found.put(name, fields={"value": rng.randint(0, 2)})
        elif rng.random() < 0.2:
            thing.fields["value"] = 7
        elif rng.random() < 0.1:
            del found.things[name]
    for name, thing in found.things.items():
        thing.fixed = name.startswith("job/")


@pytest.mark.parametrize("seed", range(150))
def test_the_preview_is_what_farms_do_when_nobody_interferes(seed: int) -> None:
    rng = random.Random(seed)
    found = world(documents(rng))
    disturbed(found, rng)
    found.apply("shop", *documents(rng), prune=rng.random() < 0.7, mass=True, adopt=["*"])
    shown = play(found.snapshot("shop"))
    found.run("shop")
    done = [(act.verb, str(act.ref)) for _, act in shown.acts]
    anew = {ref for verb, ref in done if verb == "replace"}  # deleted first, and made when that is over
    carried_out = [(verb, ref) for verb, ref in found.verbs() if (verb, ref in anew) != ("create", True)]
    assert Counter(done) == Counter(carried_out)
    assert (shown.refused, shown.blocked) == ({}, None)
    assert set(shown.left) == {ref for ref in found.owned("shop") if ref in found.snapshot("shop").left}


def test_a_change_that_the_server_takes_in_no_case_is_a_refusal_and_no_wait() -> None:
    settings = TypedReference(api_version="v1", kind="ConfigMap", namespace="n", name="a")
    found = world((entry("rc/a"),))
    found.apply("shop", entry("rc/a"), Entry(ref=settings, document={"data": {"a": "2"}}))
    shot = found.snapshot("shop")
    why = "data is immutable"
    stands = Live(ref=settings, owner="apps/shop", differs=("data.a",), busy=why, why=why)
    shown = play(replace(shot, live={**shot.live, str(settings): stands}))
    assert (shown.refused, shown.waits) == ({str(settings): why}, {})
    going = replace(stands, differs=())
    assert play(replace(shot, live={**shot.live, str(settings): going})).waits == {str(settings): why}


def test_the_order_of_removals_is_no_wait() -> None:
    found = world((entry("rc/a"), entry("rc/b", wave=1), entry("rc/c", wave=2)))
    found.say("shop", deleting="objects")
    shown = play(found.snapshot("shop"))
    assert [str(act.ref) for _, act in shown.acts] == ["rc/c", "rc/b", "rc/a"]
    assert shown.waits == {}
    found.things["rc/b"].busy = "a rollout changes it"
    assert play(found.snapshot("shop")).waits == {"rc/b": "a rollout changes it"}


def test_the_preview_says_of_an_object_that_is_being_deleted_and_wanted_again_that_it_waits() -> None:
    found = world((entry("rc/a"), entry("rc/b")))
    found.apply("shop", entry("rc/a"), prune=True)
    while not found.things["rc/b"].going:
        found.cycle("shop")
    found.apply("shop", entry("rc/a"), entry("rc/b"), prune=True)
    assert play(found.snapshot("shop")).waits == {"rc/b": "is being deleted"}
    assert decide(found.snapshot("shop")).acts == ()
