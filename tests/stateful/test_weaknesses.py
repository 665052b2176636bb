"""Weaknesses of p2's replication controllers that show only over time, shown to be gone on virtual time.

The others have their tests where the part is that mends them; each bears the weakness's number.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from farmd.daemonset.commands import DAEMON_SET
from farmd.nodes import commands as node_commands
from farmd.replication import commands
from store import codec, operations
from store.locks import Holder
from store.ports import Request, Response
from store.rcs import ReplicationController
from store.reality import Intent
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

HOUSEKEEPING = (KEYS.tree("access/ends"), KEYS.tree("failsafe"))
THEIRS = Intent("f" * 64, "feedfeedfeedfeed")


def requests_of(scene: Scene, name: str) -> list[Request]:
    """All that a farm sends from now on, but parked queries, renewals, looks at leader and statuses, and the
    task of house-keeping that reads the ends of commands each minute.
    """
    sent: list[Request] = []
    regular = ("/session/renew/", "/status/leader", KEYS.tree("status"), *HOUSEKEEPING)
    line = scene.farms[name].line
    send = line.send

    async def noted(request: Request, timeout: float) -> Response:
        params = dict(request.params)
        if int(params.get("index", "0")) == 0 and not any(path in request.path for path in regular):
            sent.append(request)
        return await send(request, timeout)

    line.send = noted  # type: ignore[method-assign]
    return sent


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_w7_a_cycle_that_changes_nothing_asks_consul_nothing(scene: Scene, strategy: str) -> None:
    """p2 listed all pod and node labels several times a cycle; here the caches know."""
    scene.nodes(6)
    rc = scene.rc(name="web", replicas=3, strategy=strategy, node_selector="zone=a")
    scene.rc(name="other", replicas=3, pod_id="other")
    scene.farm()
    scene.advance(60.0)  # house-keeping has had its first round
    sent = requests_of(scene, "ash")
    for number in range(6):
        assert scene.ask(lambda n=number: node_commands.label(scene.call, f"n{n}", {"rack": "r1"}))  # type: ignore[misc]
    scene.advance(30.0)
    assert [(request.method, request.path) for request in sent] == []
    scene.change(KEYS.record("rcs", rc), labels={"team": "b"})
    scene.advance(30.0)
    assert scene.status(rc).state == "converged"
    told = [(request.method, request.path) for request in sent]
    assert told == [("PUT", "/v1/txn")], "its status names the new record (R25)"


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_w9_a_node_that_becomes_eligible_is_used_at_once(scene: Scene, strategy: str) -> None:
    """By event: p2 saw it when its watch returned, half a minute later."""
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=1, strategy=strategy, node_selector="zone=b")
    scene.farm()
    scene.advance(20.0)
    assert scene.status(rc).state == "blocked"
    assert scene.ask(lambda: node_commands.label(scene.call, "n1", {"zone": "b"}))
    scene.advance(0.5)
    assert scene.places(rc) == [("n1", "hello")]


def test_w9_a_node_that_becomes_ineligible_is_left_at_once(scene: Scene) -> None:
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=1, strategy="dynamic", node_selector="zone=a")
    scene.farm()
    scene.advance(20.0)
    (old,) = scene.places(rc)
    assert scene.ask(lambda: node_commands.label(scene.call, old[0], {"zone": "b"}))
    counts = []
    for _ in range(10):
        scene.advance(0.05)
        counts.append(len(scene.places(rc)))
    assert max(counts) == 2, "the new pod stands beside the old"
    assert min(counts) == 1
    scene.advance(3.0)
    assert scene.places(rc) not in ([], [old])


def test_w9_what_fails_for_one_controller_backs_off_and_delays_no_other(scene: Scene) -> None:
    scene.nodes(3)
    bad = scene.rc(name="bad", replicas=0, pod_id="bad")
    manifest = scene.sight.rcs[bad].manifest
    scene.farm()
    scene.change(KEYS.record("rcs", bad), manifest="0" * 64, replicas_desired=1)
    scene.advance(60.0)
    assert scene.status(bad).state == "blocked"
    sent = requests_of(scene, "ash")
    scene.advance(600.0)
    asked = [request for request in sent if KEYS.manifest("0" * 64) in request.path]
    assert 5 <= len(asked) <= 20, "once a minute at last, with jitter"
    good = scene.rc(name="good", replicas=2, pod_id="good")
    scene.advance(1.0)
    assert len(scene.places(good)) == 2
    scene.change(KEYS.record("rcs", bad), manifest=manifest)
    scene.advance(1.0)
    assert len(scene.places(bad)) == 1, "a change of the record ends the wait"


@pytest.mark.parametrize("meanwhile", [False, True], ids=["seen before", "while the removal is on its way"])
def test_w10_a_removal_leaves_an_intent_of_somebody_else(scene: Scene, meanwhile: bool) -> None:
    """p2 deleted the intent of whoever had taken the place."""
    scene.nodes(1)
    rc = scene.rc(name="web", replicas=1)
    farm = scene.farm()
    (place,) = scene.places(rc)
    scene.witness.tampered.add(place)
    if meanwhile:
        farm.line.delay = 1.0
        assert scene.ask(lambda: commands.set_replicas(scene.call, "web", 0))
        scene.advance(1.2)
    scene.put(KEYS.intent(*place), codec.encode(THEIRS))
    if not meanwhile:
        scene.advance(5.0)
        assert THEIRS.owner in scene.status(rc).reason
        assert scene.ask(lambda: commands.set_replicas(scene.call, "web", 0))
    scene.advance(60.0)
    assert scene.places(rc) == []
    assert scene.sight.intents[place] == THEIRS


def test_w10_an_update_never_takes_an_intent_of_somebody_else_over(scene: Scene) -> None:
    scene.nodes(1)
    rc = scene.rc(name="web", replicas=1)
    farm = scene.farm()
    (place,) = scene.places(rc)
    other = scene.rc(name="other", replicas=0, pod_id="hello", pod_command=["other"])
    scene.witness.tampered.add(place)
    farm.line.delay = 1.0
    scene.change(KEYS.record("rcs", rc), manifest=scene.sight.rcs[other].manifest)
    scene.advance(1.2)
    scene.put(KEYS.intent(*place), codec.encode(THEIRS))
    scene.advance(60.0)
    assert scene.sight.intents[place] == THEIRS
    assert THEIRS.owner in scene.status(rc).reason


def test_w21_moves_that_cannot_start_leave_neither_sessions_nor_tasks(scene: Scene) -> None:
    """p2 opened a session and left a goroutine behind at each attempt."""
    scene.nodes(3)
    rc = scene.rc(name="web", replicas=2, strategy="dynamic", node_selector="zone=a")
    scene.farm()
    old, _ = scene.places(rc)
    lock = KEYS.mutation_lock("rcs", rc)
    session = scene.run(scene.hand.create_session(name="a rollout", ttl=3600))
    scene.run(scene.hand.transaction([operations.lock(lock, Holder("rollouts", "7", "x").value(), session)]))
    scene.advance(20.0)

    def standing() -> tuple[int, int]:
        return len(asyncio.all_tasks(scene.loop)), len(scene.server.state.sessions.all())

    assert scene.ask(lambda: node_commands.label(scene.call, old[0], {"zone": "b"}))
    scene.advance(10.0)
    sent, before = requests_of(scene, "ash"), standing()
    scene.advance(300.0)
    assert "locked by rollouts/7" in scene.status(rc).reason
    assert sum(lock in request.path for request in sent) >= 20, "it looked for the end of the lock"
    assert standing() == before
    scene.run(scene.hand.destroy_session(session))
    scene.advance(30.0)
    assert old not in scene.places(rc)
    assert scene.status(rc).state == "converged"
    tasks, sessions = standing()
    assert tasks <= before[0]
    assert sessions == before[1] - 1


def test_w22_a_starved_controller_writes_and_says_nothing_for_hours(scene: Scene) -> None:
    """p2 wrote an audit record and sent an alert every half minute."""
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=5)
    farm = scene.farm()
    scene.advance(20.0)
    status, told = scene.read(KEYS.status("rcs", rc)), scene.audits("pods.place")
    sent = requests_of(scene, "ash")
    scene.advance(2 * 3600.0)
    assert scene.read(KEYS.status("rcs", rc)) == status
    assert scene.audits("pods.place") == told == 1
    assert [alert.incident_key for alert in farm.inbox.fired] == [rc]
    assert not [request for request in sent if b"rcs" in request.body]


@pytest.mark.parametrize("taken_over", ["before the next try", "in the middle of it"])
def test_w16_the_alert_of_a_failed_move_ends_whoever_makes_the_next(scene: Scene, taken_over: str) -> None:
    """The heir knows from the store that people were told: it tells them of the end, and of nothing else."""
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=1, strategy="dynamic", node_selector="zone=a")
    former = scene.farm()
    scene.change(KEYS.record("rcs", rc), unhealthy_after=0.0, transfer_timeout=5.0)
    (old,) = scene.places(rc)
    (new,) = {"n0", "n1"} - {old[0]}
    scene.agents[new].ail("hello", sick=True)
    assert scene.ask(lambda: node_commands.label(scene.call, old[0], {"zone": "b"}))
    scene.advance(15.0)
    assert f"transfer_{rc}" in former.inbox.firing
    if taken_over == "in the middle of it":
        scene.change(KEYS.record("rcs", rc), transfer_timeout=600.0)
        scene.advance(100.0)
        assert len(scene.places(rc)) == 2
    scene.run(former.stop())
    if taken_over == "in the middle of it":
        scene.agents[new].ail("hello", sick=False)
        scene.advance(2.0)
    heir = scene.farm("birch")
    scene.agents[new].ail("hello", sick=False)
    scene.advance(120.0)
    assert scene.places(rc) == [(new, "hello")]
    assert heir.inbox.resolved == [f"transfer_{rc}"]
    assert heir.inbox.fired == []
    assert heir.inbox.firing == {}


def with_team(rc: ReplicationController) -> bytes:
    """A record with the field of a newer version that every record of a scene bears."""
    return msgspec.json.encode({**msgspec.to_builtins(rc), "x-team": "a"})


def spread(scene: Scene) -> dict[str, int]:
    """How many pods each node has."""
    return dict(sorted(Counter(node for _, node, _ in scene.sight.pods).items()))


def even(scene: Scene, nodes: int) -> bool:
    """Whether no node has more than its share and what farms that do not see each other may add."""
    counts = spread(scene)
    return len(counts) == nodes and max(counts.values()) - min(counts.values()) <= 2


def test_w25_controllers_that_start_at_once_do_not_pile_their_pods_on_one_node(scene: Scene) -> None:
    """Each sees what the others are just placing: after a cold start as well as in the middle of the day."""
    scene.nodes(5)
    ids = [scene.rc(name=f"rc-{number}", replicas=1, pod_id=f"p{number}") for number in range(30)]
    scene.farm()
    scene.advance(10.0)
    assert even(scene, 5), spread(scene)
    wanted = [msgspec.structs.replace(scene.sight.rcs[rc], replicas_desired=2) for rc in ids]
    more = [operations.put(KEYS.record("rcs", rc.id), with_team(rc)) for rc in wanted]
    scene.run(scene.hand.transaction(more))
    scene.advance(10.0)
    assert even(scene, 5), spread(scene)


@pytest.mark.parametrize("why", ["lost", "ineligible"])
def test_w25_what_leaves_a_node_does_not_pile_up_on_the_next(scene: Scene, why: str) -> None:
    scene.nodes(5)
    for number in range(40):
        scene.rc(
            name=f"rc-{number}", replicas=1, pod_id=f"p{number}", strategy="dynamic", node_selector="zone=a"
        )
    scene.farm()
    scene.advance(10.0)
    assert even(scene, 5), spread(scene)
    if why == "lost":
        scene.run(scene.agents["n0"].die(at_once=True))
    else:
        assert scene.ask(lambda: node_commands.label(scene.call, "n0", {"zone": "b"}))
    scene.advance(60.0)
    assert "n0" not in spread(scene)
    assert even(scene, 4), spread(scene)


def test_the_audit_says_of_every_change_of_pods_who_and_why_and_how_many_there_were(scene: Scene) -> None:
    scene.nodes(4)
    rc = scene.rc(name="web", replicas=3, strategy="dynamic", node_selector="zone=a")
    scene.farm()
    scene.advance(5.0)
    (place, *_) = scene.places(rc)
    scene.witness.tampered.add(place)
    scene.delete(KEYS.intent(*place))
    scene.advance(5.0)
    assert scene.ask(lambda: node_commands.label(scene.call, place[0], {"zone": "b"}))
    scene.advance(20.0)
    gone = scene.places(rc)[0][0]
    assert scene.ask(lambda: node_commands.label(scene.call, place[0], {"zone": "a"}))
    scene.run(scene.agents[gone].die(at_once=True))
    scene.advance(40.0)
    assert scene.ask(lambda: commands.set_replicas(scene.call, "web", 1))
    scene.advance(5.0)
    audits = [audit for _, audit in scene.sight.dump.audits if audit.kind == "rcs"]
    farms = [audit for audit in audits if audit.actor == "farm/ash"]
    assert {audit.action for audit in farms} == {
        "pods.place",
        "pods.repair",
        "pods.remove",
        "pods.retarget",
        "transfer.start",
        "transfer.place",
        "transfer.finish",
    }
    assert [audit.action for audit in farms if not audit.reason] == []
    for audit in farms:
        grown = len(audit.placed) - len(audit.removed)
        assert int(audit.after["pods"]) - int(audit.before["pods"]) == grown


def test_r25_a_status_names_the_record_that_it_speaks_of_also_where_it_says_the_same(scene: Scene) -> None:
    scene.nodes(1)
    rc = scene.rc(name="web", replicas=1)
    scene.farm()
    scene.advance(10.0)
    key = KEYS.record("rcs", rc)
    for labels in ({"any": "change"}, {"any": "other"}):
        scene.change(key, labels=labels)
        scene.advance(5.0)
        record, said = scene.read(key), scene.status(rc)
        assert record is not None
        assert (said.state, said.record) == ("converged", record.modify_index)


def test_r23_a_disabled_daemon_set_does_not_collect_the_nodes_that_change(scene: Scene) -> None:
    scene.nodes(3)
    farm = scene.farm()
    pod = {"id": "mesh", "command": ["sleep", "9"]}
    spec = DAEMON_SET.file.parse({"name": "mesh", "disabled": True, "pod": pod}, "test")
    made = scene.ask(lambda: DAEMON_SET.create(scene.call, spec))
    assert made is not None
    scene.change(KEYS.record("daemonsets", made.change.id), **{"x-team": "a"})
    scene.advance(5.0)
    for number in range(3):
        scene.change(KEYS.node(f"n{number}"), labels={"zone": "b"})
        scene.advance(2.0)
    (kind,) = (loop.kind for loop in farm.farm.loops if loop.kind.name == "daemonsets")
    followed = kind.context.fleet.interests
    assert followed.changed(made.change.id, "mesh", resources=False, pods=False) == set()
