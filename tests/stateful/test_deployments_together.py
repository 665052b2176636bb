"""Deployments of several services, their volumes and machines, and what stops or takes one over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farmd.deploy.changes import VolumeNotes
from farmd.deploy.spec import VolumeMount, VolumeSpec
from store import codec, operations
from store.failsafe import Failsafe
from store.nodes import Node
from store.services import Hook
from tests.stateful.deploying import BAD, SECOND, Deploying, spec
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene


@pytest.fixture
def deploying(scene: Scene) -> Deploying:
    return Deploying(scene)


@pytest.fixture
def standing(deploying: Deploying) -> Deploying:
    """Two services stand in their first version."""
    deploying.ended(deploying.deploy(spec("db", replicas=1), spec()))
    return deploying


def taken(deploying: Deploying, ident: str) -> list[str]:
    found = [audit for _, audit in deploying.scene.sight.dump.audits if audit.id == ident]
    return [str(audit.after["service"]) for audit in found if audit.action == "deployment.take"]


def test_a_global_service_has_a_pod_on_each_machine_also_on_new_ones(deploying: Deploying) -> None:
    wanted = spec(mode="global")
    deploying.ended(deploying.deploy(wanted))
    assert {node for node, _ in deploying.pods()} == set(deploying.scene.agents)
    deploying.scene.add_node("late", {}, 4.0)
    deploying.until(lambda: "late" in {node for node, _ in deploying.pods()})
    ident = deploying.deploy(spec(image=SECOND, mode="global", update={"parallelism": 2}))
    deploying.ended(ident)
    assert {node for node, _ in deploying.pods()} == set(deploying.scene.agents)
    assert {pod.labels["deployment"] for pod in deploying.pods().values()} == {ident}
    assert len(deploying.pods()) == len(deploying.scene.agents)


def test_services_come_in_the_order_in_which_they_need_one_another(deploying: Deploying) -> None:
    ident = deploying.deploy(spec(), spec("db"), goals={"web": {"after": {"db": "healthy"}}})
    deploying.until(lambda: "web" in taken(deploying, ident))
    assert taken(deploying, ident) == ["db", "web"]
    assert deploying.serving("db") == 3
    deploying.ended(ident)


def test_what_needs_a_service_that_failed_is_left_alone(standing: Deploying) -> None:
    bad = spec("db", BAD, replicas=1)
    standing.break_(bad)
    before = standing.pods()
    ident = standing.deploy(spec(image=SECOND), bad, goals={"web": {"after": {"db": "healthy"}}})
    standing.ended(ident, "reverted")
    assert (taken(standing, ident), standing.pods()) == (["db"], before)
    standing.whole(spec())
    standing.whole(spec("db", replicas=1))


def test_a_service_waits_for_another_that_its_deployment_does_not_change(standing: Deploying) -> None:
    (place,) = standing.pods("db")
    standing.scene.agents[place[0]].ail(place[1], True)
    standing.scene.advance(5.0)
    ident = standing.deploy(spec(image=SECOND), goals={"web": {"after": {"db": "healthy"}}})
    standing.scene.advance(20.0)
    assert taken(standing, ident) == []
    assert standing.status(ident).services[0].reason == "waits until db is healthy"
    standing.scene.agents[place[0]].ail(place[1], False)
    standing.ended(ident)


def test_others_finish_where_one_fails(standing: Deploying) -> None:
    bad = spec("db", BAD, replicas=1)
    standing.break_(bad)
    ident = standing.deploy(spec(image=SECOND), bad)
    standing.ended(ident, "reverted")
    standing.whole(spec(image=SECOND))
    standing.whole(spec("db", replicas=1))


def test_an_atomic_deployment_turns_all_back_where_one_fails(standing: Deploying) -> None:
    bad = spec("db", BAD, replicas=1)
    standing.break_(bad)
    ident = standing.deploy(spec(image=SECOND), bad, atomic=True)
    standing.ended(ident, "reverted")
    standing.whole(spec())
    standing.whole(spec("db", replicas=1))


def test_the_end_names_the_pod_that_failed_and_each_reason_once(standing: Deploying) -> None:
    bad = spec(image=BAD)
    standing.break_(bad)
    ident = standing.deploy(bad, spec("api"), spec("db"), atomic=True)
    standing.until(lambda: standing.endings(ident))
    (end,) = (audit for _, audit in standing.scene.sight.dump.audits if audit.action == "deployment.reverted")
    place = str(end.after["failed"])
    assert end.reason.startswith(f"web: {place}: ended 2 times"), end.reason
    assert end.reason.endswith("; api, db: web failed, and all go together"), end.reason
    assert place.partition("/")[2].startswith("web~")


def test_an_atomic_deployment_releases_all_at_once(standing: Deploying) -> None:
    ident = standing.deploy(
        spec(image=SECOND),
        spec("db", SECOND, replicas=1),
        atomic=True,
        goals={"web": {"after": {"db": "healthy"}}},
    )
    standing.until(lambda: "web" in taken(standing, ident))
    assert standing.service("db").deployment == ident
    standing.ended(ident)
    standing.whole(spec(image=SECOND))


def test_a_deployment_takes_services_over_from_one_that_waits(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"on_failure": "pause"})
    standing.break_(bad)
    first = standing.deploy(bad)
    standing.until(lambda: standing.state(first).halted)
    second = standing.deploy(spec(image=SECOND))
    standing.supersede(first, second)
    standing.until(lambda: standing.endings(second))
    standing.ended(first, "reverted")
    assert standing.endings(second) == ["deployment.done"]
    standing.whole(spec(image=SECOND))


def not_joined(deploying: Deploying, first: str, second: str, name: str = "web") -> None:
    """The second deployment has a service, which still names the first one."""
    record = msgspec.structs.replace(deploying.service(name), deployment=first)
    deploying.scene.put(KEYS.record("services", record.id), codec.encode(record))
    deploying.supersede(first, second)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_service_that_was_taken_over_joins_when_it_is_taken(standing: Deploying, goes_on: bool) -> None:
    bad = spec(image=BAD, update={"on_failure": "pause"})
    standing.break_(bad)
    first = standing.deploy(bad, *([spec("db", SECOND, replicas=1)] if goes_on else []))
    standing.until(lambda: standing.state(first).halted)
    second = standing.deploy(spec(image=SECOND))
    not_joined(standing, first, second)
    standing.until(lambda: standing.endings(second))
    if goes_on:
        standing.say(first, ask="rollback")
    standing.ended(first, "reverted")
    assert standing.endings(second) == ["deployment.done"]
    standing.whole(spec(image=SECOND))


def test_a_service_that_was_taken_over_twice_joins_the_last_one(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"on_failure": "pause"})
    standing.break_(bad)
    first = standing.deploy(bad)
    standing.until(lambda: standing.state(first).halted)
    second, third = standing.deploy(spec(image=BAD)), standing.deploy(spec(image=SECOND))
    standing.supersede(second, third)
    not_joined(standing, first, second)
    standing.until(lambda: standing.endings(first) and standing.endings(second))
    standing.ended(third)
    standing.whole(spec(image=SECOND))


def test_a_service_that_was_taken_over_and_never_joined_is_free_in_the_end(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"on_failure": "pause"})
    standing.break_(bad)
    first = standing.deploy(bad)
    standing.until(lambda: standing.state(first).halted)
    second = standing.deploy(spec(image=SECOND), fingerprint="of another world")
    not_joined(standing, first, second)
    standing.until(lambda: standing.endings(second))
    standing.ended(first, "reverted")
    assert standing.endings(second) == ["deployment.stale"]


def test_a_service_that_was_taken_over_is_nobodys_when_its_new_deployment_never_began(
    standing: Deploying,
) -> None:
    bad = spec(image=BAD, update={"on_failure": "pause"})
    standing.break_(bad)
    first = standing.deploy(bad)
    standing.until(lambda: standing.state(first).halted)
    second = standing.deploy(spec(image=SECOND), fingerprint="of another world")
    standing.supersede(first, second)
    standing.until(lambda: standing.endings(second))
    standing.ended(first, "reverted")
    assert standing.endings(second) == ["deployment.stale"]


def test_a_plan_that_nobody_saw_is_not_carried_out(standing: Deploying) -> None:
    before = standing.pods()
    ident = standing.deploy(spec(image=SECOND), spec("new"), fingerprint="of another world")
    standing.ended(ident, "stale")
    assert (standing.pods(), set(standing.scene.sight.services)) == (before, {"web", "db"})


def test_a_draft_that_nobody_completes_is_ended_and_frees_its_services(standing: Deploying) -> None:
    ident = standing.deploy(spec(image=SECOND), spec("new"), draft=True)
    standing.scene.advance(50.0)
    assert standing.endings(ident) == []
    standing.ended(ident, "abandoned")
    assert set(standing.scene.sight.services) == {"web", "db"}


def test_a_draft_that_is_completed_in_time_begins(standing: Deploying) -> None:
    ident = standing.deploy(spec(image=SECOND), draft=True)
    standing.scene.advance(30.0)
    standing.say(ident, draft=False)
    standing.ended(ident)


def test_a_volume_is_noted_before_the_first_pod_and_all_of_its_pods_stand_there(deploying: Deploying) -> None:
    mounts = {"mounts": [VolumeMount(volume="data", path="/data")]}
    wanted = spec("db", replicas=2, container=mounts, volumes=[VolumeSpec(name="data")])
    deploying.ended(deploying.deploy(wanted))
    having = [name for name, node in deploying.scene.sight.nodes.items() if "data" in node.volumes]
    assert {node for node, _ in deploying.pods("db")} == set(having)
    assert len(having) == 1
    node: Node = deploying.scene.sight.nodes[having[0]]
    assert node.volumes["data"].service == deploying.service("db").id
    assert deploying.scene.read(KEYS.name("volumes", "data")) is not None


def test_r12_a_volume_that_somebody_makes_after_the_plan_is_not_made_a_second_time(
    deploying: Deploying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods go where it is then, and not where the plan saw room for it."""
    mounts = {"mounts": [VolumeMount(volume="data", path="/data")]}
    wanted = spec("db", replicas=2, container=mounts, volumes=[VolumeSpec(name="data")])
    create, plans = VolumeNotes.create_volume, list[str]()

    async def late(notes: Any, volume: Any, machine: str) -> None:
        if not plans:
            plans.append(machine)
            other = next(name for name in deploying.scene.agents if name != machine)
            standing = await deploying.scene.hand.read(KEYS.node(other))
            node = msgspec.json.decode(standing.value) | {"volumes": {"data": {}}}
            puts = [
                operations.put(KEYS.node(other), codec.encode(node)),
                operations.put(KEYS.name("volumes", "data"), codec.encode(other)),
            ]
            await deploying.scene.hand.transaction(puts)
        await create(notes, volume, machine)

    monkeypatch.setattr(VolumeNotes, "create_volume", late)
    deploying.ended(deploying.deploy(wanted))
    (having,) = [name for name, node in deploying.scene.sight.nodes.items() if "data" in node.volumes]
    assert having not in plans
    assert {node for node, _ in deploying.pods("db")} == {having}


def freeze(deploying: Deploying, kind: str, evidence: str) -> None:
    record = Failsafe(evidence=evidence, by="user/ada", since=deploying.scene.clock.now())
    deploying.scene.put(KEYS.failsafe(kind), codec.encode(record))


def olds(deploying: Deploying, ident: str) -> set[tuple[str, str]]:
    return {place for place, pod in deploying.pods().items() if pod.labels["deployment"] != ident}


@pytest.mark.parametrize("kind", ["deployments", "rcs"])
def test_r18_while_frozen_pods_come_and_none_goes(standing: Deploying, kind: str) -> None:
    ident = standing.deploy(spec(image=SECOND))
    standing.until(lambda: standing.state(ident).goals)
    standing.scene.put(KEYS.failsafe(kind), b"what nobody can read")
    standing.scene.advance(1.0)
    before = olds(standing, ident)
    standing.scene.advance(60.0)
    assert olds(standing, ident) == before
    assert len(standing.pods()) > len(before)
    assert standing.status(ident).state == "frozen"
    freeze(standing, kind, "a doubt")
    standing.say(ident, reason="go on")  # a person's word after the freeze
    standing.until(lambda: olds(standing, ident) < before, 2.0)
    standing.ended(ident)


def test_r18_while_frozen_the_pod_of_a_hook_stays_too(standing: Deploying) -> None:
    wanted, service = spec(image=SECOND, pre_deploy=Hook(command=["migrate"])), standing.service().id
    standing.ends(standing.hook(wanted), 0)
    ident = standing.deploy(wanted)
    standing.until(lambda: standing.scene.places(service), step=0.05)
    standing.scene.put(KEYS.failsafe("deployments"), b"what nobody can read")
    standing.scene.advance(30.0)
    assert standing.scene.places(service)
    standing.scene.delete(KEYS.failsafe("deployments"))
    standing.ended(ident)
    assert standing.scene.places(service) == []


def test_r19_mass_ill_health_holds_no_way_back(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"order": "stop-first"})
    standing.break_(bad)
    ident = standing.deploy(bad)
    standing.until(lambda: any(pod.labels["deployment"] == ident for pod in standing.pods().values()))
    freeze(standing, "deployments", "health: more than 50% of the instances fail")
    standing.ended(ident, "reverted")
    standing.whole(spec())


def test_a_rollback_by_hand_also_takes_back_what_was_released_already(standing: Deploying) -> None:
    """The other service never gets as far as its first pod."""
    waits = {"db": {"after": {"nobody": "healthy"}}}
    ident = standing.deploy(spec(image=SECOND), spec("db", SECOND, replicas=1), spec("new"), goals=waits)
    standing.until(lambda: standing.service().revision == 2 and not standing.service("new").deployment)
    standing.say(ident, ask="rollback")
    standing.ended(ident, "reverted")
    standing.whole(spec())
    assert standing.service().revision == 1
    assert set(standing.scene.sight.services) == {"web", "db"}


def test_what_a_farm_released_that_does_not_tell_what_hooks_run_is_taken_back(standing: Deploying) -> None:
    """A field of a version that a farm does not know is lost when that farm writes the service."""
    waits = {"db": {"after": {"nobody": "healthy"}}}
    hooked = spec(image=SECOND, pre_deploy=Hook(command=["migrate"]))
    standing.ends(standing.hook(hooked), 0)
    ident = standing.deploy(hooked, spec("db", SECOND, replicas=1), goals=waits)
    standing.until(lambda: standing.service().revision == 2)
    found = standing.service()
    assert found.version is not None
    assert found.version.hook_manifest
    lost = msgspec.structs.replace(found, version=msgspec.structs.replace(found.version, hook_manifest=""))
    standing.scene.put(KEYS.record("services", found.id), codec.encode(lost))
    standing.say(ident, ask="rollback")
    standing.ended(ident, "reverted")
    standing.whole(spec())
    assert standing.service().revision == 1
