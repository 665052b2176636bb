"""Plans of apps: KubeVela's own cases, on a model of the objects, and what its users found it to lack."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from farmd.apps.facts import Live
from farmd.apps.plan import decide, revisions
from farmd.apps.sweep import steps
from store import codec
from store.apps import MAX_ENTRIES, App, DispatchState, Entry
from store.errors import InputInvalid
from tests.app_worlds import World, entry, ref, world

ONE = (entry("rc/deploy1"), entry("rc/svc1"), entry("rc/pv1"))
TWO = (entry("rc/deploy2"), entry("rc/svc2"), entry("rc/pv2"))


# -- KubeVela's dispatcher (spec of the seed) ------------------------------------------------------


def test_dispatch_makes_all_objects_of_the_first_revision() -> None:
    found = world(ONE)
    assert found.owned("shop") == {"rc/deploy1", "rc/svc1", "rc/pv1"}
    assert (found.apps["shop"].state.reached, found.apps["shop"].state.swept) == (1, 1)


def test_the_same_documents_again_write_no_object() -> None:
    found = world(ONE)
    found.apply("shop", *ONE, prune=True)
    found.run()
    assert found.acts == []
    assert found.apps["shop"].state.reached == 2


def test_an_upgrade_collects_what_it_left() -> None:
    found = world(ONE)
    found.apply("shop", *TWO, prune=True, mass=True)
    found.run()
    assert set(found.things) == {"rc/deploy2", "rc/svc2", "rc/pv2"}


def test_an_object_of_both_revisions_never_vanishes() -> None:
    found = world(ONE)
    found.apply("shop", TWO[0], ONE[1], TWO[2], prune=True)
    found.run()
    assert set(found.things) == {"rc/deploy2", "rc/svc1", "rc/pv2"}
    assert ("remove", "rc/svc1") not in found.verbs()


def test_without_prune_what_left_the_files_stays_owned_and_listed() -> None:
    found = world(ONE)
    found.apply("shop", *TWO)
    found.run()
    assert found.owned("shop") == {str(each.ref) for each in (*ONE, *TWO)}
    for _ in range(3):  # through revisions that are trimmed later
        found.apply("shop", *TWO)
        found.run()
    found.apply("shop", *TWO, prune=True)
    found.run()
    assert set(found.things) == {"rc/deploy2", "rc/svc2", "rc/pv2"}


def test_all_is_applied_before_the_first_removal() -> None:
    found = world(ONE)
    found.apply("shop", *TWO, prune=True, mass=True)
    found.run()
    verbs = [verb for verb, _ in found.verbs()]
    assert verbs.index("remove") > max(at for at, verb in enumerate(verbs) if verb == "create")


def test_what_a_revision_left_that_failed_is_collected_by_the_next() -> None:
    found = world(ONE)
    found.slow = True
    found.apply("shop", *TWO, entry("rc/bad"), prune=True)
    found.cycle("shop")
    found.things["rc/bad"].failed = "no image"
    plan = found.run()
    assert plan.blocked is not None
    assert "revision 2 failed: rc/bad: no image" in plan.blocked.text
    assert {"rc/deploy1", "rc/svc1", "rc/pv1", "rc/bad"} <= set(found.things)
    found.slow = False
    found.apply("shop", entry("rc/deploy3"), TWO[0], prune=True, mass=True)
    found.run()
    assert set(found.things) == {"rc/deploy3", "rc/deploy2"}


def test_what_a_first_revision_made_that_failed_goes_with_its_app() -> None:
    found = World(slow=True)
    found.apply("shop", *ONE)
    found.cycle("shop")
    found.things["rc/svc1"].failed = "no image"
    assert found.run().phase == "failed"
    found.say("shop", deleting="objects")
    found.run()
    assert (found.things, found.apps) == ({}, {})


def test_an_object_that_several_revisions_name_is_treated_as_the_newest_one_says() -> None:
    found = world((*ONE, entry("rc/r1")))
    found.slow = True
    found.apply("shop", *ONE, entry("rc/r1", on_remove="keep"))
    found.cycle("shop")
    found.slow = False
    found.apply("shop", *ONE, prune=True)
    found.run()
    assert found.verbs()[-1] == ("release", "rc/r1")


def test_a_quick_edit_and_its_way_back_remove_nothing_that_is_wanted() -> None:
    """KubeVela's A -> B -> A, which collected every object and called the app healthy."""
    found = world(ONE)
    found.slow = True
    found.apply("shop", ONE[0], *TWO, prune=True)
    found.cycle("shop")
    found.apply("shop", *ONE, prune=True)
    found.slow = False
    found.run()
    assert set(found.things) == {"rc/deploy1", "rc/svc1", "rc/pv1"}
    assert not {("remove", str(each.ref)) for each in ONE} & set(found.verbs())


# -- KubeVela's resource keeper --------------------------------------------------------------------


def test_every_revision_that_lists_an_object_keeps_it_until_none_does() -> None:
    found = World()
    for documents in ((1, 2), (1, 3), (4,), (5, 6, 7)):
        found.apply("shop", *(entry(f"rc/cm{number}") for number in documents))
        found.run()
    assert len(found.things) == 7
    found.apply("shop", *(entry(f"rc/cm{number}") for number in (5, 6, 7)), prune=True, mass=True)
    found.run()
    assert set(found.things) == {"rc/cm5", "rc/cm6", "rc/cm7"}
    found.say("shop", deleting="objects")
    found.run()
    assert (found.things, found.apps) == ({}, {})


def test_objects_of_another_owner_do_not_count_as_existing() -> None:
    found = world(ONE)
    found.things["rc/svc1"].owner = "apps/other"
    found.apply("shop", ONE[0], ONE[2], prune=True)
    found.run()
    assert found.things["rc/svc1"].owner == "apps/other"


def test_what_others_depend_on_goes_after_them() -> None:
    chain = (entry("rc/c5"), entry("rc/c6", after=["rc/c5"]), entry("rc/c7", after=["rc/c6"]))
    found = world((*chain, entry("rc/x"), entry("rc/y"), entry("rc/z")))
    found.apply("shop", entry("rc/x"), entry("rc/y"), entry("rc/z"), prune=True)
    gone = []
    for _ in range(8):
        found.cycle("shop")
        found.tick()
        gone.append({"rc/c5", "rc/c6", "rc/c7"} - set(found.things))
    order = [next(at for at, each in enumerate(gone) if name in each) for name in ("rc/c7", "rc/c6", "rc/c5")]
    assert order == sorted(set(order))


def test_a_chain_is_made_one_after_the_other() -> None:
    found = World(slow=True)
    found.apply("shop", entry("rc/c7", after=["rc/c6"]), entry("rc/c6", after=["rc/c5"]), entry("rc/c5"))
    found.run()
    assert found.verbs() == [("create", "rc/c5"), ("create", "rc/c6"), ("create", "rc/c7")]


def test_many_chains_advance_together() -> None:
    found = World(slow=True)
    chains = [
        entry(f"rc/c{chain}-{link}", after=[f"rc/c{chain}-{link - 1}"] if link else [])
        for chain in range(50)
        for link in range(3)
    ]
    found.apply("shop", *chains)
    counts = []
    for _ in range(6):
        found.cycle("shop")
        counts.append(len(found.things))
        found.tick()
    assert sorted(set(counts)) == [50, 100, 150]


def test_state_is_kept() -> None:
    found = world((entry("rc/a", 1), entry("rc/b", 1), entry("rc/c", 1, apply="once")))
    del found.things["rc/a"]
    found.things["rc/b"].fields["value"] = 9
    del found.things["rc/c"]
    found.run()
    assert set(found.things) == {"rc/a", "rc/b"}
    assert found.things["rc/b"].fields == {"value": 1}
    assert found.verbs() == [("create", "rc/a"), ("repair", "rc/b")]


def test_what_is_applied_once_is_made_again_by_another_revision_alone() -> None:
    found = world((entry("job/load", 1, apply="once"),))
    del found.things["job/load"]
    found.run()
    assert found.things == {}
    found.apply("shop", entry("job/load", 1, apply="once"))
    found.run()
    assert set(found.things) == {"job/load"}


def waiting(*documents: Entry, ready: bool = True) -> World:
    """A world whose app waits for a busy rc/db in its first step; a job beside it was ready, and is gone."""
    found = World()
    found.apply("shop", *documents)
    found.cycle("shop")
    found.things["rc/db"].busy = "managed by rollout/db"
    found.things["job/load"].ready = ready
    found.cycle("shop")
    del found.things["job/load"]
    found.run()
    return found


def test_what_is_applied_once_and_goes_by_itself_while_its_step_waits_is_not_made_again() -> None:
    once = entry("job/load", 1, apply="once")
    found = waiting(once, entry("rc/db", 1), entry("rc/web", 1, wave=1))
    assert set(found.things) == {"rc/db"}
    found.things["rc/db"].busy = ""
    found.run()
    assert (set(found.things), found.apps["shop"].state.reached) == ({"rc/db", "rc/web"}, 1)
    found.apply("shop", once, entry("rc/db", 2), entry("rc/web", 1, wave=1))
    found.run()
    assert set(found.things) == {"job/load", "rc/db", "rc/web"}


def test_what_is_applied_once_and_goes_before_it_was_ready_is_made_again() -> None:
    found = waiting(entry("job/load", 1, apply="once"), entry("rc/db", 1), ready=False)
    assert set(found.things) == {"job/load", "rc/db"}


@pytest.mark.parametrize(
    ("seq", "verdict", "ended", "failure"),
    [(1, "ready", ["job/load"], ""), (1, "failed", [], "job/load: no"), (0, "ready", [], "")],
    ids=["it ended well", "it failed", "it is of an earlier target"],
)
def test_what_is_applied_once_is_judged_also_while_it_goes(
    seq: int, verdict: Any, ended: list[str], failure: str
) -> None:
    found = World()
    found.apply("shop", entry("job/load", 1, apply="once"))
    found.cycle("shop")
    shot = found.snapshot("shop")
    going = {"busy": "is being deleted", "verdict": verdict, "why": "no", "seq": seq}
    live = {name: dataclasses.replace(each, **going) for name, each in shot.live.items()}
    note = decide(dataclasses.replace(shot, live=live)).note or shot.state
    assert (note.ended, note.failure) == (ended, failure)


def test_a_new_revision_in_the_middle_of_a_step_makes_what_is_applied_once_anew() -> None:
    found = waiting(entry("job/load", 1, apply="once"), entry("rc/db", 1))
    found.apply("shop", entry("job/load", 1, apply="once"), entry("rc/db", 1), entry("rc/web", 1))
    found.cycle("shop")
    assert set(found.things) == {"job/load", "rc/db", "rc/web"}


@pytest.mark.parametrize(
    ("effective", "reached", "swept", "former"),
    [
        (0, 0, 0, range(1, 11)),
        (10, 9, 9, (9, 10)),
        (10, 3, 3, range(3, 11)),
        (3, 3, 3, range(3, 11)),
        (5, 3, 3, range(3, 11)),
        (3, 3, 9, (3, 10)),
        (10, 10, 10, (10,)),
    ],
    ids=[
        "none reached",
        "the last but one",
        "one long ago",
        "on the way back",
        "half-way",
        "back",
        "the last",
    ],
)
def test_of_ten_revisions_those_count_that_may_have_left_something(
    effective: int, reached: int, swept: int, former: Sequence[int]
) -> None:
    state = DispatchState(effective=effective, reached=reached, swept=swept)
    assert revisions(App(revision=10), state) == set(former)


def test_the_last_revision_that_is_not_pruned_keeps_what_files_say_to_keep() -> None:
    found = world((entry("rc/a"), entry("rc/b", on_remove="keep")))
    found.apply("shop", entry("rc/a"), prune=True)
    found.run()
    assert found.things["rc/b"].owner == ""


# -- waves -----------------------------------------------------------------------------------------


def test_a_chain_of_as_many_objects_as_an_app_may_have_is_put_in_order() -> None:
    chain = [entry(f"rc/r{at}", after=[f"rc/r{at + 1}"]) for at in range(MAX_ENTRIES - 1)]
    last = entry(f"rc/r{MAX_ENTRIES - 1}")
    assert steps([*chain, last]) == tuple((each,) for each in (last, *reversed(chain)))


def test_objects_that_wait_for_one_another_in_a_circle_are_named() -> None:
    circle = [entry(f"rc/{name}", after=[f"rc/{other}"]) for name, other in ("ab", "bc", "ca")]
    with pytest.raises(InputInvalid, match=r"after: found a cycle .*rc/b -> rc/c.*, expected none"):
        steps(circle)


def test_a_wave_begins_once_the_former_is_ready() -> None:
    found = World(slow=True)
    found.apply("shop", entry("rc/web", wave=2), entry("rc/db", wave=1))
    found.cycle("shop")
    found.cycle("shop")
    assert set(found.things) == {"rc/db"}
    found.tick()
    found.cycle("shop")
    found.cycle("shop")
    assert set(found.things) == {"rc/db", "rc/web"}


def test_a_wave_that_is_late_fails_the_revision_and_stops() -> None:
    found = World(slow=True)
    found.apply("shop", entry("rc/web"), entry("rc/next", wave=1), deadline=60.0)
    found.cycle("shop")
    found.now += 61
    found.cycle("shop")
    plan = found.cycle("shop")
    assert plan.blocked is not None
    assert plan.blocked.text == "revision 1 failed: not ready in time: rc/web (not ready)"
    found.tick()
    assert found.cycle("shop").empty
    assert "rc/next" not in found.things


def test_a_revision_that_failed_goes_back_to_the_last_that_was_reached() -> None:
    found = world((entry("rc/web", 1),), on_failure="rollback")
    found.apply("shop", entry("rc/web", 2), entry("rc/new"))
    found.things["rc/web"].failed = ""
    found.cycle("shop")
    found.things["rc/new"].failed = "no image"
    plan = found.run()
    assert found.things["rc/web"].fields == {"value": 1}
    assert set(found.things) == {"rc/web"}
    assert plan.blocked is not None
    assert "revision 2 failed: rc/new: no image" in plan.blocked.text
    state = found.apps["shop"].state
    assert (state.effective, state.reached, state.swept, state.refused) == (1, 1, 2, 2)


def test_the_first_revision_has_no_way_back() -> None:
    found = World()
    found.apply("shop", entry("rc/web"), on_failure="rollback")
    found.cycle("shop")
    found.things["rc/web"].failed = "no image"
    plan = found.run()
    assert plan.blocked is not None
    assert "rc/web" in found.things


def test_time_stands_while_an_app_is_paused() -> None:
    found = World(slow=True)
    found.apply("shop", entry("rc/web"), deadline=60.0)
    found.cycle("shop")
    found.say("shop", paused=True)
    assert found.cycle("shop").acts == ()
    found.now += 600
    plan = found.cycle("shop")
    assert (plan.empty, plan.blocked and plan.blocked.wanted) == (True, True)
    found.say("shop", paused=False)
    found.cycle("shop")
    found.cycle("shop")
    assert found.apps["shop"].state.refused == 0


def test_a_newer_revision_ends_the_way_back() -> None:
    found = world((entry("rc/web", 1),), on_failure="rollback")
    found.apply("shop", entry("rc/web", 2), entry("rc/new"))
    found.cycle("shop")
    found.things["rc/new"].failed = "no image"
    found.cycle("shop")
    assert found.apps["shop"].state.effective == 1
    found.apply("shop", entry("rc/web", 3), prune=True)
    found.run()
    assert {name: thing.fields["value"] for name, thing in found.things.items()} == {"rc/web": 3}


# -- owners ----------------------------------------------------------------------------------------


def test_an_equal_object_of_nobodys_is_adopted_and_a_different_one_refused() -> None:
    found = World()
    found.put("rc/equal", fields={"value": 1})
    found.put("rc/other", fields={"value": 2})
    found.apply("shop", entry("rc/equal", 1), entry("rc/new"))
    found.run()
    assert found.verbs() == [("adopt", "rc/equal"), ("create", "rc/new")]
    found.apply("shop", entry("rc/equal", 1), entry("rc/other", 1), entry("rc/more"))
    plan = found.run()
    assert plan.refused == {"rc/other": "exists and differs: value; --adopt rc/other adopts it"}
    assert found.things["rc/other"].owner == ""
    assert "rc/more" not in found.things  # the wave is blocked as a whole
    found.say("shop", adopt=["rc/other"])
    found.run()
    assert found.things["rc/other"].fields == {"value": 1}
    assert "rc/more" in found.things


def test_an_object_of_another_app_or_tool_is_refused_by_its_name() -> None:
    found = World()
    found.put("rc/a", owner="apps/other")
    found.put("rc/b", owner="Helm release shop")
    found.apply("shop", entry("rc/a"), entry("rc/b"))
    plan = found.run()
    assert plan.refused == {"rc/a": "belongs to app other", "rc/b": "belongs to Helm release shop"}


def test_an_object_moves_from_app_to_app_without_a_gap() -> None:
    found = world((entry("rc/web"), entry("rc/stays"), entry("rc/too")))
    found.apply("next", entry("rc/web"), adopt=["rc/web"])
    found.run("next")
    assert found.apps["next"].state.waits == ["rc/web"]
    assert found.things["rc/web"].owner == "apps/shop"
    found.apply("shop", entry("rc/stays"), entry("rc/too"), prune=True)
    found.run("shop", "next")
    assert found.things["rc/web"].owner == "apps/next"
    assert ("hand", "rc/web") in found.verbs("shop")
    assert ("remove", "rc/web") not in found.verbs("shop")
    assert found.apps["next"].state.waits == []


def test_a_hand_over_in_a_swap_that_cannot_be_done_does_not_outlast_the_deadline() -> None:
    found = world((entry("rc/a"),))
    found.apply("next", entry("rc/b"))
    found.run("next")
    for app, name in (("shop", "rc/b"), ("next", "rc/a")):
        found.apply(app, entry(name), adopt=["*"], prune=True, mass=True, deadline=60.0)
        found.cycle(app)
    assert [act.verb for act in decide(found.snapshot("shop")).acts] == ["hand"]
    found.now += 61.0
    plan = decide(found.snapshot("shop"))
    assert (plan.action, plan.acts) == ("app.fail", ())
    assert "rc/b (belongs to app next" in plan.why


def test_apps_that_swap_objects_in_a_circle_hand_over_and_one_that_waits_beside_it_does_not() -> None:
    found = World()
    for app in ("a", "b", "c", "beside"):
        found.apply(app, entry(f"rc/{app}"))
    found.run()
    found.acts.clear()
    found.slow = True
    for app, wish in (("a", "b"), ("b", "c"), ("beside", "b")):
        found.apply(app, entry(f"rc/{wish}"), adopt=["*"], prune=True, mass=True)
        for _ in range(3):
            found.cycle(app)
    assert found.acts == []  # a line and no circle: who waits for rc/a may never come
    found.apply("c", entry("rc/a"), adopt=["*"], prune=True, mass=True)
    found.slow = False
    found.run("a", "b", "c")
    assert {text: thing.owner for text, thing in found.things.items()} == {
        "rc/a": "apps/c",
        "rc/b": "apps/a",
        "rc/c": "apps/b",
        "rc/beside": "apps/beside",
    }


def test_what_a_person_released_is_nobodys_and_stays() -> None:
    found = world((entry("rc/web"), entry("rc/x")))
    found.apply("shop", entry("rc/x"))
    record = found.apps["shop"]
    record.trackers[2] = (entry("rc/x"), entry("rc/web", left=True, release=True))
    found.run()
    assert found.things["rc/web"].owner == ""


# -- drift -----------------------------------------------------------------------------------------


def test_a_field_that_somebody_else_writes_again_and_again_is_left_and_told() -> None:
    found = world((entry("rc/web", 1),))
    for _ in range(3):
        found.things["rc/web"].fields["value"] = 9
        found.run()
    found.things["rc/web"].fields["value"] = 9
    plan = found.run()
    assert plan.blocked is not None
    assert plan.blocked.code == "contended"
    assert "rc/web: value was repaired 3 times in 10 minutes" in plan.blocked.text
    assert found.things["rc/web"].fields == {"value": 9}
    found.now += 601
    found.run()
    assert found.things["rc/web"].fields == {"value": 1}


def test_all_objects_that_somebody_took_away_are_made_again_and_the_state_fits_into_its_record() -> None:
    long = [entry(f"rc/{at:0253}") for at in range(MAX_ENTRIES)]
    found = world(tuple(long))
    for _ in range(2):
        found.things.clear()
        found.run()
        assert len(found.things) == MAX_ENTRIES
        assert len(codec.encode(found.apps["shop"].state)) < 256 * 1024


def test_repairs_may_be_off() -> None:
    found = world((entry("rc/web", 1),), repair=False)
    found.things["rc/web"].fields["value"] = 9
    plan = found.run()
    assert plan.waiting == {"rc/web": "differs: value, and repairs are off"}
    assert found.things["rc/web"].fields == {"value": 9}


def test_what_takes_no_change_is_made_anew() -> None:
    found = world((entry("job/load", 1),))
    found.things["job/load"].fixed = True
    found.apply("shop", entry("job/load", 2))
    found.run()
    assert found.things["job/load"].fields == {"value": 2}
    assert found.verbs() == [("replace", "job/load"), ("create", "job/load")]


# -- removals --------------------------------------------------------------------------------------


def test_no_more_than_half_goes_without_a_persons_word() -> None:
    found = world(tuple(entry(f"rc/r{number}") for number in range(4)))
    found.apply("shop", entry("rc/r0"), prune=True)
    plan = found.run()
    assert plan.blocked is not None
    assert "would remove 3 objects of 4: rc/r1, rc/r2, rc/r3" in plan.blocked.text
    assert len(found.things) == 4
    found.say("shop", mass=True)
    found.run()
    assert set(found.things) == {"rc/r0"}


def test_nothing_goes_with_an_empty_bundle_unless_a_person_says_so() -> None:
    found = world((entry("rc/a"),))
    found.apply("shop", prune=True)
    plan = found.run()
    assert plan.blocked is not None
    assert plan.blocked.code == "mass"
    assert set(found.things) == {"rc/a"}


def test_r18_a_freeze_holds_removals_replacements_and_the_way_back() -> None:
    found = world((entry("rc/a"), entry("rc/b"), entry("job/j", 1)), on_failure="rollback")
    found.things["job/j"].fixed = True
    found.frozen = "doubt"
    found.apply("shop", entry("rc/a", 1), entry("job/j", 1), entry("rc/c"), prune=True)
    plan = found.run()
    assert plan.blocked is not None
    assert plan.blocked.frozen
    assert ("update", "rc/a") in found.verbs()  # additions and changes go on
    assert "rc/b" in found.things
    found.apply("shop", entry("job/j", 2), entry("rc/bad"))
    found.cycle("shop")
    found.things["rc/bad"].failed = "no image"
    plan = found.run()
    assert found.apps["shop"].state.refused == 0
    assert "replace" not in [verb for verb, _ in found.verbs()]
    found.frozen = None
    found.run()
    assert found.apps["shop"].state.refused == 3


def test_an_object_in_use_is_waited_for_by_its_name() -> None:
    found = world((entry("rc/a"), entry("rc/b")))
    found.things["rc/b"].busy = "rollout/b changes it"
    found.apply("shop", entry("rc/a"), prune=True)
    plan = found.run()
    assert plan.waiting == {"rc/b": "rollout/b changes it"}
    found.things["rc/b"].busy = ""
    found.run()
    assert set(found.things) == {"rc/a"}


@pytest.mark.parametrize(
    ("live", "why"),
    [
        ({"owner": "apps/shop", "verdict": "progressing", "why": "0 of 2 updated"}, "waiting"),
        ({"owner": "apps/shop", "busy": "is being deleted"}, "waiting"),
        ({"busy": "cannot get it"}, "waiting"),
        ({"differs": ("value",)}, "refused"),
    ],
)
def test_what_nothing_tells_of_is_looked_at_again_while_a_step_waits_for_it(live: Any, why: str) -> None:
    found = World()
    found.apply("shop", entry("rc/web"), deadline=60.0)
    found.apps["shop"].state = DispatchState(seq=1, effective=1, since=found.now)
    shot = found.snapshot("shop")
    stands = Live(ref=ref("rc/web"), settles=7.0, **live)
    plan = decide(dataclasses.replace(shot, live={"rc/web": stands}))
    assert (list(getattr(plan, why)), plan.after) == (["rc/web"], 7.0)
    told = dataclasses.replace(stands, settles=None)
    assert decide(dataclasses.replace(shot, live={"rc/web": told})).after == 60.0


def test_what_goes_and_of_which_nothing_tells_is_looked_at_again() -> None:
    found = world((entry("rc/a"), entry("rc/b")))
    found.apply("shop", entry("rc/a"), prune=True)
    found.cycle("shop")
    found.cycle("shop")
    shot = found.snapshot("shop")
    busy = dataclasses.replace(shot.live["rc/b"], busy="held by a finalizer", settles=7.0)
    plan = decide(dataclasses.replace(shot, live={**shot.live, "rc/b": busy}))
    assert (plan.phase, plan.waiting, plan.after) == ("sweeping", {"rc/b": "held by a finalizer"}, 7.0)


def test_an_object_that_is_being_deleted_and_wanted_again_is_made_once_it_is_gone() -> None:
    found = world((entry("rc/a"), entry("rc/b")))
    found.apply("shop", entry("rc/a"), prune=True)
    found.cycle("shop")
    while not found.things["rc/b"].going:
        found.cycle("shop")
    found.apply("shop", entry("rc/a"), entry("rc/b"), prune=True)
    found.run()
    assert set(found.things) == {"rc/a", "rc/b"}


def test_an_app_that_ends_keeps_its_objects_where_people_say_so() -> None:
    found = world(ONE)
    found.say("shop", deleting="keep")
    found.run()
    assert (len(found.things), found.owned("shop"), found.apps) == (3, set(), {})


# -- restored stores -------------------------------------------------------------------------------


def test_r16_a_mark_above_all_that_is_recorded_stops_the_app_until_a_person_goes_on_above_it() -> None:
    found = world(ONE)
    shot = found.snapshot("shop")
    live = {name: dataclasses.replace(each, seq=41) for name, each in shot.live.items()}
    later = dataclasses.replace(shot, live=live)
    plan = decide(later)
    assert plan.blocked is not None
    assert plan.blocked.code == "restored"
    assert plan.blocked.text.endswith("farmctl app resume shop --reason TEXT continues above that mark")
    assert plan.empty
    said = dataclasses.replace(later, app=App(revision=1, resumed=41))
    resumed = decide(said)
    assert resumed.note is not None
    assert resumed.note.seq == 42


def test_r16_what_a_revision_made_that_a_restore_lost_stays_when_a_person_goes_on() -> None:
    found = world(ONE)
    shot = found.snapshot("shop")
    lost = Live(ref=ref("rc/lost"), owner="apps/shop", seq=41, created=shot.state.began + 1)
    live = {**shot.live, "rc/lost": lost}
    app = App(revision=1, resumed=41)
    resumed = decide(dataclasses.replace(shot, app=app, live=live, now=shot.state.began + 2))
    assert resumed.note is not None
    plan = decide(dataclasses.replace(shot, app=app, live=live, state=resumed.note))
    assert plan.empty


def test_what_a_stopped_owner_made_too_late_is_collected_and_what_is_older_stays() -> None:
    found = world(ONE)
    shot = found.snapshot("shop")
    began = shot.state.began
    late = Live(ref=ref("rc/late"), owner="apps/shop", seq=0, created=began + 1)
    ghost = dataclasses.replace(late, seq=1)
    state = DispatchState(seq=2, effective=1, reached=1, swept=1, wave=1, began=began)
    shot = dataclasses.replace(shot, state=state)
    for each, verbs in ((late, []), (ghost, ["remove"]), (dataclasses.replace(ghost, created=began - 1), [])):
        live = {**shot.live, "rc/late": each}
        plan = decide(dataclasses.replace(shot, live=live))
        assert [act.verb for act in plan.acts] == verbs


def test_r18_a_freeze_also_holds_a_way_back_that_people_allow_later() -> None:
    found = world((entry("rc/a"),))
    found.apply("shop", entry("rc/a"), entry("rc/bad"))
    found.cycle("shop")
    found.things["rc/bad"].failed = "no image"
    found.run()
    found.frozen = "doubt"
    found.say("shop", on_failure="rollback")
    plan = found.run()
    assert plan.blocked is not None
    assert plan.blocked.frozen
    assert "rc/bad" in found.things
    found.frozen = None
    found.run()
    assert set(found.things) == {"rc/a"}
