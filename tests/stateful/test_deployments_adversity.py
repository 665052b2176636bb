"""Deployments beside owners' workers that act, machines that die, and farms that know late."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from farmd.deploy.spec import ContainerSpec, Placement
from farmd.nodes import commands as nodes
from store.services import Hook
from tests.effort import first
from tests.stateful.deploying import BAD, FIRST, SECOND, Deploying, spec
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene


@pytest.fixture
def deploying(scene: Scene) -> Deploying:
    return Deploying(scene)


def of_owners(deploying: Deploying) -> list[str]:
    """What owners' workers did to pods by themselves."""
    found = [audit for _, audit in deploying.scene.sight.dump.audits if audit.kind == "rcs"]
    return [audit.action for audit in found if audit.placed or audit.removed or audit.relabelled]


def test_r14_an_owner_that_is_handed_back_adds_nothing_by_what_its_farm_saw_before(scene: Scene) -> None:
    """Each farm hears of the other's pods an hour late; owners and deployments are on both of them."""
    for farm in scene.farms.values():
        farm.own_trees_pause = 3600.0
    deploying = Deploying(scene)
    names = [f"s{number}" for number in range(6)]
    for image in (FIRST, SECOND, FIRST):
        deploying.ended(deploying.deploy(*(spec(name, image, replicas=2) for name in names)))
    scene.advance(60.0)
    assert of_owners(deploying) == []
    for name in names:
        deploying.whole(spec(name, replicas=2))


@pytest.mark.parametrize("offset", first(2, [0.3, 2.0, 0.0, 0.6, 1.0, 5.0]))
def test_r14_an_owners_worker_that_is_at_work_when_it_is_taken_doubles_nothing(
    deploying: Deploying, offset: float
) -> None:
    """A machine is given up about when a deployment begins: both want to place pods elsewhere."""
    deploying.ended(deploying.deploy(spec()))
    (place, *_) = deploying.pods()
    scene = deploying.scene
    scene.run(scene.agents[place[0]].die(at_once=True))
    scene.advance(8.0 + offset)
    ident = deploying.deploy(spec(image=SECOND))
    deploying.ended(ident)
    deploying.whole(spec(image=SECOND))
    assert place not in deploying.pods()


def test_r14_a_move_that_is_under_way_is_ended_first_and_people_are_told(deploying: Deploying) -> None:
    deploying.ended(deploying.deploy(spec()))
    scene = deploying.scene
    (place, *_) = deploying.pods()
    for agent in scene.agents.values():
        agent.delay = 20.0  # what moves takes its time
    assert scene.ask(lambda: nodes.drain(scene.call, place[0], 3600.0)) is not None
    work = f"rcs/{deploying.owner().id}"
    deploying.until(lambda: work in scene.sight.work and scene.sight.work[work].transfer is not None)
    ident = deploying.deploy(spec(image=SECOND))
    deploying.until(lambda: deploying.state(ident).goals, step=0.02)
    assert scene.sight.work[work].transfer is not None
    deploying.until(lambda: "waiting until a move of" in str(deploying.status(ident)), step=0.02)
    deploying.ended(ident)
    deploying.whole(spec(image=SECOND))
    assert place[0] not in {node for node, _ in deploying.pods()}


def test_r14_a_move_that_is_under_way_holds_its_own_service_alone(deploying: Deploying) -> None:
    beside = Placement(machines=["n3", "n4"])
    web, db = (
        spec("web", replicas=1, placement=Placement(machines=["n0", "n1"])),
        spec("db", placement=beside),
    )
    deploying.ended(deploying.deploy(web, replace(db, replicas=1)))
    scene = deploying.scene
    (place,) = deploying.pods("web")
    for name in ("n0", "n1"):
        scene.agents[name].delay = 60.0  # what moves takes its time
    assert scene.ask(lambda: nodes.drain(scene.call, place[0], 3600.0)) is not None
    work = f"rcs/{deploying.owner('web').id}"
    deploying.until(lambda: work in scene.sight.work and scene.sight.work[work].transfer is not None)
    scene.put(KEYS.failsafe("rcs"), b"what nobody can read")  # nothing goes, so the move does not end
    scene.advance(1.0)
    second = [replace(each, replicas=1, container=ContainerSpec(image=SECOND)) for each in (web, db)]
    ident = deploying.deploy(*second)
    scene.advance(10.0)
    assert scene.sight.work[work].transfer is not None
    assert len(deploying.pods("db")) == 2, "its new pod has come, beside the old one"
    assert "waiting until a move of" in str(deploying.status(ident))
    scene.delete(KEYS.failsafe("rcs"))
    deploying.ended(ident)


def test_r12_an_owner_that_somebody_wrote_is_read_again_after_the_refusal(scene: Scene) -> None:
    """No watch tells the farm of the change."""
    deploying = Deploying(scene, farms=["ash"])
    deploying.ended(deploying.deploy(spec()))
    ident, owner = deploying.deploy(spec(image=SECOND)), KEYS.record("rcs", deploying.owner().id)
    deploying.until(lambda: deploying.owner().taken, step=0.001)
    scene.farms["ash"].line.blind("silent")
    scene.change(owner, **{"x-team": "b"})
    scene.advance(5.0)
    assert [pod for pod in deploying.pods().values() if pod.labels["deployment"] == ident]
    scene.farms["ash"].line.heal()
    deploying.ended(ident)


def test_a_farm_that_dies_when_a_hook_is_done_does_not_run_it_again(deploying: Deploying) -> None:
    wanted = spec(pre_deploy=Hook(command=["migrate"], timeout=60.0))
    hook = deploying.hook(wanted)
    deploying.ends(hook, 0)
    ident = deploying.deploy(wanted)
    scene = deploying.scene
    deploying.until(lambda: deploying.runs(hook))
    for name in ("ash", "birch"):
        scene.run(scene.farms[name].kill())
    scene.advance(30.0)  # it ends while no farm is there
    for name in ("ash", "birch"):
        scene.farm(name)
    deploying.ended(ident)
    deploying.whole(wanted)
    assert deploying.runs(hook) == 1


def test_a_machine_that_is_lost_while_pods_come_costs_no_more_than_its_pods(deploying: Deploying) -> None:
    deploying.ended(deploying.deploy(spec(replicas=4)))
    ident = deploying.deploy(spec(image=SECOND, replicas=4))
    scene = deploying.scene
    deploying.until(lambda: any(pod.labels["deployment"] == ident for pod in deploying.pods().values()))
    new = next(place for place, pod in deploying.pods().items() if pod.labels["deployment"] == ident)
    scene.run(scene.agents[new[0]].die(at_once=True))
    least = []
    deploying.until(lambda: least.append(deploying.serving()) or deploying.endings(ident))
    deploying.ended(ident)
    deploying.whole(spec(image=SECOND, replicas=4))
    assert min(least) >= 4 - 1 - 1  # what stood on the machine, and the one that was being replaced


def test_an_agent_that_is_absent_for_a_while_fails_nothing(deploying: Deploying) -> None:
    deploying.ended(deploying.deploy(spec(), spec("db", replicas=1, on_lost="wait")))
    scene = deploying.scene
    (place,) = deploying.pods("db")
    ident = deploying.deploy(
        spec("db", SECOND, replicas=1, on_lost="wait", update={"deadline": 30.0, "order": "stop-first"})
    )
    deploying.until(lambda: deploying.state(ident).goals)
    scene.run(scene.agents[place[0]].die(at_once=True))
    scene.advance(120.0)
    assert deploying.endings(ident) == []
    assert not any(goal.back for goal in deploying.state(ident).goals.values())
    scene.run(scene.agents[place[0]].start())
    deploying.ended(ident)


@pytest.mark.parametrize("seed", first(3, range(12)))
def test_whatever_happens_services_come_to_their_goals_and_the_audit_adds_up(scene: Scene, seed: int) -> None:
    """Farms die, machines die and come back, people pause and go on, in the middle of what changes."""
    rng = random.Random(seed)
    deploying = Deploying(scene, machines=6)
    names = ("a", "b", "c")
    deploying.ended(deploying.deploy(*(spec(name) for name in names)))
    for image in (SECOND, FIRST, SECOND):
        wanted = [
            spec(
                name,
                image,
                replicas=rng.randint(1, 4),
                update={"order": rng.choice(["", "stop-first"]), "parallelism": rng.randint(1, 3)},
            )
            for name in names
        ]
        ident = deploying.deploy(*wanted, goals={"c": {"after": {"a": "healthy"}}})
        for _ in range(4):
            scene.advance(rng.uniform(0.1, 6.0))
            scene.check()
            _trouble(deploying, rng, ident)
        if deploying.record(ident) is not None:
            deploying.say(ident, ask="run")
        for agent in scene.agents.values():
            scene.run(agent.start())
        for farm in ("ash", "birch"):
            scene.farm(farm)
        deploying.ended(ident, seconds=400.0)
        scene.advance(30.0)
        for each in wanted:
            deploying.until(lambda: deploying.serving(each.name) == each.replicas)  # noqa: B023
            deploying.whole(each)


def _trouble(deploying: Deploying, rng: random.Random, ident: str) -> None:
    scene, kind = deploying.scene, rng.choice(["farm", "machine", "pause", "run", "intent"])
    if kind == "farm":
        name = rng.choice(["ash", "birch"])
        scene.run(scene.farms[name].kill())
        scene.farm(name)
    elif kind == "machine":
        agent = rng.choice(list(scene.agents.values()))
        scene.run(agent.die(at_once=rng.random() < 0.5) if agent.alive else agent.start())
    elif kind == "intent":
        places = sorted(place for place, intent in scene.sight.intents.items() if intent is not None)
        place = rng.choice(places)
        scene.witness.tampered.add(place)
        scene.delete(KEYS.intent(*place))
    elif deploying.record(ident) is not None:
        deploying.say(ident, ask=kind)


def test_a_bad_image_on_many_machines_turns_back_while_none_was_missed(scene: Scene) -> None:
    deploying = Deploying(scene, machines=12)
    deploying.ended(deploying.deploy(spec(replicas=12)))
    bad = spec(image=BAD, replicas=12, update={"parallelism": 4})
    deploying.break_(bad)
    ident = deploying.deploy(bad)
    least = []
    deploying.until(lambda: least.append(deploying.serving()) or deploying.endings(ident))
    deploying.ended(ident, "reverted")
    deploying.whole(spec(replicas=12))
    assert min(least) == 12
