"""The plan of one pod: a table of situations and what must follow."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.agent.plan import (
    Action,
    Forget,
    Hold,
    Kill,
    Leave,
    Prepare,
    Situation,
    Start,
    Stop,
    Wait,
    backoff,
    decide,
    failures_after,
    reason_to_stop,
)
from store.manifests import Restart

NOW = 100.0
OLD, NEW = "a" * 64, "b" * 64


def at(**fields: object) -> Situation:
    return Situation(**({"wanted": True, "sha": NEW} | fields))


AILS: dict[str, object] = {"ailing_at": NOW, "ailment": "sick"}
LEAVES_AILING = Leave("sick", ailing=True)

CASES: list[tuple[str, Situation, Action]] = [
    ("wanted and not there: start", at(), Start()),
    ("wanted and runs: nothing", at(running=NEW), Wait()),
    ("R29: on hold, not prepared: prepare", at(hold=True, prepared=False), Prepare()),
    ("R29: on hold and prepared: choose its ports", at(hold=True), Hold()),
    ("R29: on hold with ports: wait", at(hold=True, held=True), Wait()),
    ("R29: released: start", at(held=True), Start()),
    ("R29: a hold stops nothing", at(hold=True, running=NEW), Wait()),
    ("R29: on hold and unwanted: forget", at(hold=True, held=True, wanted=False), Forget()),
    ("in backoff: wait for its end", at(not_before=NOW + 5), Wait(NOW + 5)),
    ("backoff is over: start", at(not_before=NOW), Start()),
    ("not wanted and runs: stop", at(wanted=False, running=NEW), Stop("no longer wanted")),
    ("not wanted and gone: forget", at(wanted=False), Forget()),
    ("another manifest: stop the old one first", at(running=OLD), Stop("replaced by another manifest")),
    ("another manifest that cannot run here: keep the old one", at(running=OLD, startable=False), Wait()),
    ("another manifest, not prepared: the old one serves", at(running=OLD, prepared=False), Prepare()),
    (
        "not prepared, and that is under way: the old one serves",
        at(running=OLD, prepared=False, preparing=True),
        Wait(),
    ),
    (
        "preparing failed: the old one serves, and it is tried again",
        at(running=OLD, prepared=False, prepare_at=NOW + 3),
        Wait(NOW + 3),
    ),
    ("a restart, not prepared: prepare", at(running=NEW, restart=True, prepared=False), Prepare()),
    (
        "not wanted: nothing to prepare",
        at(wanted=False, running=OLD, prepared=False),
        Stop("no longer wanted"),
    ),
    ("not there and not prepared: prepare", at(prepared=False), Prepare()),
    ("not there and being prepared: wait", at(prepared=False, preparing=True), Wait()),
    ("a manifest that cannot run here: nothing to start", at(startable=False), Wait()),
    ("busy: one act at a time", at(busy=True), Wait()),
    ("busy and unwanted: still one act at a time", at(busy=True, wanted=False), Wait()),
    ("stopping: until the grace is over", at(running=OLD, stopping=NOW - 4, grace=10), Wait(NOW + 6)),
    ("grace over: kill", at(running=OLD, stopping=NOW - 10, grace=10), Kill()),
    ("no grace: kill at once", at(running=OLD, stopping=NOW, grace=0), Kill()),
    ("killed: give the kernel time", at(running=OLD, stopping=NOW - 20, killed=NOW - 0.4), Wait(NOW + 0.6)),
    ("killed and still there: again", at(running=OLD, stopping=NOW - 20, killed=NOW - 1), Kill()),
    ("wanted again while it stops: it stops all the same", at(running=NEW, stopping=NOW - 1), Wait(NOW + 9)),
    ("cut off for less than stop_after", at(running=NEW, stop_after=30, isolated=10), Wait(NOW + 20)),
    (
        "R27: cut off for stop_after",
        at(running=NEW, stop_after=30, isolated=30),
        Stop("out of contact with the store for 30 s (stop_after)"),
    ),
    ("R27: cut off without stop_after: nothing", at(running=NEW, isolated=1e6), Wait()),
    ("R27: cut off and ended: not started again", at(stop_after=30, isolated=31), Wait()),
    ("halting and runs: stop", at(running=NEW, halting=True), Stop("the agent is stopping its workloads")),
    ("not wanted and forgetting failed: wait", at(wanted=False, not_before=NOW + 5), Wait(NOW + 5)),
    ("R39: not wanted: it leaves", at(wanted=False, running=OLD, leaves=True), Leave("no longer wanted")),
    ("R39: it leaves: wait", at(wanted=False, running=OLD, leaves=True, leaving=True), Wait()),
    (
        "R39: it has left: stop",
        at(wanted=False, running=OLD, leaves=True, leaving=True, left=True),
        Stop("no longer wanted"),
    ),
    (
        "R39: another manifest: what it needs is there before the old one leaves",
        at(running=OLD, leaves=True, prepared=False),
        Prepare(),
    ),
    (
        "R39: another manifest while it leaves: prepared meanwhile",
        at(running=OLD, leaves=True, leaving=True, prepared=False),
        Prepare(),
    ),
    (
        "R39: it has left: stopped, although another manifest is not prepared",
        at(running=OLD, leaves=True, leaving=True, left=True, prepared=False),
        Stop("replaced by another manifest"),
    ),
    (
        "R39: wanted again while it leaves: it goes all the same",
        at(running=NEW, leaves=True, leaving=True, left=True),
        Stop("it had already stopped when it was requested again"),
    ),
    (
        "R27, R39: cut off: nobody can be told",
        at(running=NEW, leaves=True, stop_after=30, isolated=30),
        Stop("out of contact with the store for 30 s (stop_after)"),
    ),
    ("its check fails, not for long enough", at(running=NEW, ailing_at=NOW + 5), Wait(NOW + 5)),
    ("its check fails for too long: stop", at(running=NEW, **AILS), Stop("sick", ailing=True)),
    ("R39: its check fails for too long: it leaves", at(running=NEW, leaves=True, **AILS), LEAVES_AILING),
    (
        "R39: what left because of its check stops",
        at(running=NEW, leaves=True, leaving=True, left=True, **AILS),
        Stop("sick", ailing=True),
    ),
    (
        "R39: its check passes again while it leaves: it goes all the same",
        at(running=NEW, leaves=True, leaving=True, left=True),
        Stop("it had already stopped when it was requested again"),
    ),
    ("its check fails, and nothing is ready for a start", at(running=NEW, prepared=False, **AILS), Prepare()),
    ("its check fails, and it could not start again", at(running=NEW, startable=False, **AILS), Wait()),
    ("R29: its check fails, and a start would be held", at(running=NEW, hold=True, **AILS), Wait()),
    (
        "R27: its check fails, and its lease lets nothing start",
        at(running=NEW, stop_after=30, isolated=10, confirmed=False, **AILS),
        Wait(NOW + 20),
    ),
    (
        "its check fails, and it is not wanted: that is why it stops",
        at(wanted=False, running=NEW, **AILS),
        Stop("no longer wanted"),
    ),
    (
        "R27, R39: cut off while it leaves",
        at(wanted=False, running=NEW, leaves=True, leaving=True, stop_after=30, isolated=30),
        Stop("no longer wanted"),
    ),
    (
        "R27, R39: it leaves, until it is cut off at the latest",
        at(wanted=False, running=NEW, leaves=True, leaving=True, stop_after=30, isolated=10),
        Wait(NOW + 20),
    ),
    (
        "R39: halting: at once",
        at(running=NEW, leaves=True, halting=True),
        Stop("the agent is stopping its workloads"),
    ),
    ("halting and gone: neither start nor forget", at(wanted=False, halting=True), Wait()),
]


@pytest.mark.parametrize(("situation", "action"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_plan(situation: Situation, action: Action) -> None:
    assert decide(situation, NOW) == action


flags = st.booleans()
times = st.one_of(st.none(), st.floats(0, 200))


@given(
    wanted=flags,
    running=st.sampled_from(["", OLD, NEW]),
    startable=flags,
    busy=flags,
    not_before=st.floats(0, 200),
    stopping=times,
    killed=times,
    leaves=flags,
    leaving=flags,
    left=flags,
    isolated=st.floats(0, 100),
    stop_after=st.sampled_from([0.0, 30.0]),
    halting=flags,
)
def test_a_wanted_process_is_never_touched_and_never_doubled(**fields: object) -> None:
    situation = at(**fields)
    action = decide(situation, NOW)
    if situation.running:
        assert not isinstance(action, Start | Forget)
        asked = situation.stopping is not None or situation.killed is not None or situation.leaving
        if not (reason_to_stop(situation) or asked):
            assert isinstance(action, Wait)
    else:
        assert not isinstance(action, Leave | Stop | Kill)
    if situation.leaves and isinstance(action, Stop) and not (situation.left or situation.halting):
        assert situation.isolated >= situation.stop_after > 0 or situation.leaving
    if isinstance(action, Wait) and not math.isinf(action.until) and not situation.running:
        assert action.until == situation.not_before


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.0), (1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (5000, 60.0)]
)
def test_backoff_doubles_up_to_the_maximum(failures: int, seconds: float) -> None:
    assert backoff(Restart(initial=1, maximum=60), failures) == seconds


@pytest.mark.parametrize(("before", "ran", "after"), [(0, 1, 1), (4, 59, 5), (4, 60, 1), (0, 3600, 1)])
def test_a_long_run_wipes_the_slate(before: int, ran: float, after: int) -> None:
    assert failures_after(Restart(reset=60), before, ran) == after


def test_r29_an_unwanted_pod_that_ended_by_itself_is_forgotten_only_once_its_end_was_told() -> None:
    ended = Situation(wanted=False, sha="a", done=True, told_at=10.0)
    assert decide(ended, 5.0) == Wait(10.0)
    assert decide(ended, 10.0) == Forget()
