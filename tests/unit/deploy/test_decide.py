"""What a deployment does cycle by cycle: by table, and as properties (a) to (g) on arbitrary small clusters.

A world carries out each step at once. Then the pods that came are available, or fail if their image is bad.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from farmd.deploy.facts import ServiceGoal, ServiceStep, Snapshot
from farmd.deploy.operations import (
    RemoveContainerOperation,
    ReplaceContainerOperation,
    RunContainerOperation,
    RunPreDeployOperation,
    ServicePod,
    StandingService,
    StopContainerOperation,
)
from farmd.deploy.plan import decide
from farmd.deploy.spec import Resources, ServiceSpec
from farmd.deploy.strategy import RollingStrategy
from scheduler.cluster import ClusterState
from store.pods import Place
from store.services import Hook, UpdateConfig
from tests.unit.deploy.worlds import ID, cluster, old, spec

BAD = "web:bad"


def serving(places: str, of: ServiceSpec) -> tuple[ServicePod, ...]:
    """Available pods such as ``A:2 B:1``."""
    return tuple(
        ServicePod(place=(machine, f"web~{number}"), spec=of, available=True)
        for word in places.split()
        for machine, _, count in [word.partition(":")]
        for number in range(int(count or 1))
    )


@dataclass
class World:
    """One service of a deployment, and what farms do with it."""

    machines: str
    wanted: ServiceSpec | None
    before: ServiceSpec | None
    pods: dict[Place, ServicePod] = field(default_factory=dict)
    back: bool = False
    held: bool = False
    hook: Any = ""
    outcome: str = ""
    started: int = 0
    least: int = 0
    log: list[str] = field(default_factory=list)

    def goal(self, **fields: Any) -> ServiceGoal:
        service = StandingService(id=ID, name="web", mode=self._mode, containers=tuple(self.pods.values()))
        return ServiceGoal(
            service=service, spec=self.wanted, previous=self.before, back=self.back, started=self.started,
            hook=self.hook, held=self.held, **fields,
        )  # fmt: skip

    @property
    def _mode(self) -> Any:
        return (self.wanted or self.before or spec()).mode

    @property
    def available(self) -> int:
        return sum(pod.available for pod in self.pods.values())

    @property
    def left(self) -> int:
        """How much is left to do; a replacement counts twice, because start-first it takes two steps."""
        wanted, goal = self.before if self.back else self.wanted, self.goal()
        if wanted is None:
            return len(self.pods)
        plan = RollingStrategy().plan(self.state, goal.service, wanted)
        return sum(2 if isinstance(each, ReplaceContainerOperation) else 1 for each in plan)

    @property
    def state(self) -> ClusterState:
        return cluster(self.machines, tuple(self.pods.values()), capacity={"cpu": 9.0})

    def step(self) -> ServiceStep:
        (found,) = decide(Snapshot(goals=[self.goal()], state=self.state))
        return found

    def apply(self, step: ServiceStep) -> None:
        """Carry a step out; what came is not available yet."""
        wanted = self.before if self.back else self.wanted
        for each in step.operations:
            self.log.append(type(each).__name__.removesuffix("Operation").removesuffix("Container"))
            if isinstance(each, RunContainerOperation):
                number = next(n for n in range(99) if (each.machine, f"web~{n}") not in self.pods)
                self._place((each.machine, f"web~{number}"), wanted)
            elif isinstance(each, ReplaceContainerOperation):
                self._place(each.place, wanted)
            elif isinstance(each, StopContainerOperation):
                self.pods[each.place] = replace(self.pods[each.place], available=False, running=False)
            elif isinstance(each, RemoveContainerOperation):
                del self.pods[each.place]
            elif isinstance(each, RunPreDeployOperation):
                self.hook = "done"
        if step.turn == "back":
            self.back = True
            self.pods = {place: replace(pod, mine=False, failed="") for place, pod in self.pods.items()}
        elif step.turn:
            self.outcome = step.turn

    def _place(self, place: Place, of: ServiceSpec | None) -> None:
        self.pods[place] = ServicePod(place=place, spec=of, mine=True)

    def settle(self) -> None:
        """Pods of this turn show what they are."""
        for place, pod in self.pods.items():
            if pod.mine and not pod.proven:
                bad = pod.spec is not None and pod.spec.container.image == BAD
                failed = "exited with code 1" if bad else ""
                self.pods[place] = replace(pod, available=not bad, proven=not bad, failed=failed, failing=bad)

    def run(self, most: int = 60) -> World:
        """Cycle until it ends."""
        self.started = self.least = self.available
        for _ in range(most):
            step, left = self.step(), self.left
            self.apply(step)
            if step.operations and not self.back and not self.hook:
                assert self.left < left, "a commit that brought nothing nearer"  # (b)
            self.least = min(self.least, self.available)
            if self.outcome:
                return self
            self.settle()
        raise AssertionError(f"no end after {most} cycles: {self.log}")


def world(machines: str, live: str, wanted: ServiceSpec | None, before: ServiceSpec | None = None) -> World:
    earlier = before or (old(wanted) if wanted is not None else spec())
    pods = {pod.place: pod for pod in serving(live, earlier)}
    return World(machines, wanted, earlier if live else None, pods)


def images(found: World) -> list[str]:
    return sorted(pod.spec.container.image for pod in found.pods.values() if pod.spec is not None)


def test_pods_are_replaced_one_by_one_and_none_is_missed_meanwhile() -> None:
    found = world("A B C", "A B C", spec(replicas=3)).run()
    assert (found.outcome, images(found), found.least) == ("release", ["web:2"] * 3, 3)
    assert (
        found.log == ["Run", "Remove"] * 3 or found.log[:2] == ["Run", "Run"] or found.log.count("Run") == 3
    )


def test_no_second_pod_is_replaced_before_the_first_has_proven_itself() -> None:
    found = world("A B C", "A B C", spec(replicas=3))
    found.started = 3
    found.apply(found.step())
    assert found.step().operations == ()
    assert found.step().reason == "waits until its new pods have proven themselves"


def test_a_fixed_port_costs_at_most_parallelism_pods() -> None:
    wanted = spec(replicas=4, ports="80:80@host", update=UpdateConfig(parallelism=2))
    found = world("A B C D", "A B C D", wanted).run()
    assert (found.outcome, found.least, found.log) == ("release", 2, ["Replace"] * 4)


def test_a_new_service_comes_together() -> None:
    found = world("A B C", "", spec(replicas=3))
    assert [type(each) for each in found.step().operations] == [RunContainerOperation] * 3


def test_a_bad_image_turns_back_and_costs_nothing() -> None:
    found = world("A B C", "A B C", spec(replicas=3, image=BAD), spec(replicas=3, image="web:1")).run()
    assert (found.outcome, images(found), found.least) == ("release", ["web:1"] * 3, 3)
    assert found.back


def test_a_bad_image_of_a_new_service_leaves_nothing() -> None:
    found = world("A B", "", spec(replicas=2, image=BAD)).run()
    assert (found.outcome, found.pods, found.back) == ("release", {}, True)


def test_a_bad_image_pauses_where_people_want_that() -> None:
    wanted = spec(replicas=3, image=BAD, update=UpdateConfig(on_failure="pause"))
    found = world("A B C", "A B C", wanted, spec(replicas=3, image="web:1")).run()
    assert (found.outcome, found.back) == ("pause", False)


def test_a_failed_back_turn_pauses() -> None:
    found = world(
        "A", "A", spec(image=BAD, ports="80:80@host"), spec(image=BAD, ports="80:80@host", replicas=1)
    )
    found.pods = {pod.place: pod for pod in serving("A", spec(image="web:0", ports="80:80@host"))}
    assert found.run().outcome == "pause"
    assert found.back


def test_a_hook_runs_before_the_first_pod_changes_and_never_on_the_way_back() -> None:
    hook = {"pre_deploy": Hook(command=["migrate"])}
    found = world("A", "A", spec(image=BAD, **hook), spec(image="web:1", **hook)).run()
    assert found.log[0] == "RunPreDeploy"
    assert found.log.count("RunPreDeploy") == 1
    assert images(found) == ["web:1"]


def test_while_its_hook_runs_nothing_changes_and_a_failed_one_turns_back() -> None:
    found = world("A", "A", spec(pre_deploy=Hook(command=["migrate"])))
    found.hook = "running"
    assert (found.step().operations, found.step().reason) == ((), "its hook runs")
    found.hook = "failed"
    assert found.step().turn == "back"


def test_a_service_that_is_removed_goes_whole() -> None:
    found = world("A B", "A:2 B", None).run()
    assert (found.outcome, found.pods, found.log) == ("release", {}, ["Remove"] * 3)


def test_a_lost_intent_is_repaired_also_while_paused() -> None:
    found = world("A", "A", spec())
    goal = found.goal(altered=(("A", "web~0"),))
    state = cluster("A", tuple(found.pods.values()))
    for paused in (False, True):
        (step,) = decide(Snapshot(goals=[goal], state=state, paused=paused))
        assert step.repairs == (("A", "web~0"),)
        assert not (paused and step.operations)


def test_g_while_held_pods_come_and_none_go() -> None:
    found = world("A B C", "A:2", spec(replicas=3))
    found.held, found.started = True, 2
    assert {type(each) for each in found.step().operations} <= {RunContainerOperation}


def goals(**after: dict[str, Any]) -> list[ServiceGoal]:
    """New services by name, and what each needs first."""
    return [
        ServiceGoal(
            service=StandingService(id=name, name=name),
            spec=changed(spec(), name=name),
            after=needs,
        )
        for name, needs in after.items()
    ]


def steps(found: list[ServiceGoal], **fields: Any) -> dict[str, ServiceStep]:
    """The steps of those that go on."""
    made = decide(Snapshot(goals=found, state=cluster("A"), **fields))
    return {step.service: step for step in made if step.operations or step.turn or "proven" in step.reason}


@pytest.mark.parametrize("condition", ["started", "healthy", "completed"])
def test_a_service_waits_for_what_it_depends_on(condition: str) -> None:
    db, web = goals(db={}, web={"db": condition})
    assert set(steps([db, web])) == {"db"}
    pod = ServicePod(place=("A", "db~0"), spec=db.spec, mine=True)
    begun = replace(db, service=replace(db.service, containers=(pod,)))
    assert ("web" in steps([begun, web])) == (condition == "started")
    over = replace(pod, proven=True, done=True)
    ended = replace(db, released=True, service=replace(db.service, containers=(over,)))
    assert set(steps([ended, web])) == {"web"}


def test_a_service_is_skipped_when_what_it_depends_on_turned_back() -> None:
    db, web = goals(db={}, web={"db": "healthy"})
    assert steps([replace(db, back=True, released=True), web])["web"].turn == "skip"


def test_a_condition_of_another_services_is_told() -> None:
    (web,) = goals(web={"db": "healthy"})
    (waiting,) = decide(Snapshot(goals=[web], state=cluster("A")))
    assert (waiting.operations, waiting.reason) == ((), "waits until db is healthy")
    assert set(steps([web], met=frozenset({("db", "healthy")}))) == {"web"}


def test_a_service_that_was_taken_waits_for_no_other() -> None:
    (web,) = goals(web={"db": "healthy"})
    assert set(steps([replace(web, taken=True)])) == {"web"}


def test_at_most_eight_services_change_at_once() -> None:
    assert len(steps(goals(**{f"s{number}": {} for number in range(12)}))) == 8


wishes = st.builds(
    lambda replicas, everywhere, ports, order, parallelism, cpu, bad: spec(
        replicas=replicas,
        mode="global" if everywhere else "replicated",
        ports="80:8080@host" if ports else "",
        update=UpdateConfig(order=order, parallelism=parallelism),
        image=BAD if bad else "web:2",
        container={"resources": Resources(cpu_reservation=cpu)},
    ),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "start-first", "stop-first"]),
    st.integers(1, 3),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
)
lives = st.dictionaries(st.sampled_from("ABC"), st.integers(1, 2), max_size=3).map(
    lambda found: " ".join(f"{name}:{count}" for name, count in found.items())
)


@given(st.sampled_from(["A B C", "A B C D", "A- B C"]), lives, wishes)
def test_every_deployment_ends_and_keeps_the_floor(machines: str, live: str, wanted: ServiceSpec) -> None:
    before = changed(wanted, container=changed(wanted.container, image="web:1"))
    if wanted.ports:  # no machine can have two of them
        live = " ".join(word.replace(":2", ":1") for word in live.split())
    usable = [word for word in machines.split() if not word.endswith("-") or word[0] in live]
    if wanted.ports and wanted.mode == "replicated" and wanted.replicas > len(usable):
        return  # it waits for a machine
    found = world(machines, live, wanted, before)
    started = found.available
    found.run()
    assert found.outcome == "release"
    good = wanted.container.image != BAD
    # property e, and that it got where it should
    expected = wanted if good or not found.back else (before if live else None)
    assert {pod.spec for pod in found.pods.values() if pod.spec != expected} == set()
    if expected is not None and expected.mode == "replicated":
        assert len(found.pods) == expected.replicas
    # property a: the floor
    stops = "Replace" in found.log
    floor = min(started, len(found.pods)) - (wanted.update.parallelism if stops else 0)
    assert found.least >= floor
    # property d: one port, one pod
    if wanted.ports:
        places = [place[0] for place in found.pods]
        assert len(places) == len(set(places))
    # property c: nothing is left to do
    assert found.step().turn == "release"


@given(lives, wishes, st.randoms(use_true_random=False))
def test_f_equal_input_gives_an_equal_step_in_any_order_of_pods(
    live: str, wanted: ServiceSpec, rng: Any
) -> None:
    before = changed(wanted, container=changed(wanted.container, image="web:1"))
    found = world("A B C", live, wanted, before)
    found.started = found.available
    first = found.step()
    places = list(found.pods)
    rng.shuffle(places)
    found.pods = {place: found.pods[place] for place in places}
    assert found.step() == first


@given(st.sampled_from(["A B C", "A- B C"]), lives, wishes)
def test_g_while_held_nothing_ever_goes_or_stops(machines: str, live: str, wanted: ServiceSpec) -> None:
    before = changed(wanted, container=changed(wanted.container, image="web:1"))
    found = world(machines, live, wanted, before)
    found.held, found.started = True, found.available
    for _ in range(6):
        step = found.step()
        assert {type(each) for each in step.operations} <= {RunContainerOperation}
        found.apply(step)
        if found.outcome:
            return
        found.settle()
