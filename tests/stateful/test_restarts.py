"""R28: an owner's restart takes each pod once, at its pace, whichever farms do it; on virtual time."""

from __future__ import annotations

from collections import defaultdict

import pytest

from farmd.commands import restarting
from farmd.commands.mutation import Mutation
from farmd.daemonset.commands import DAEMON_SET
from farmd.replication.commands import RC, set_replicas
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

Place = tuple[str, str]


class Starts:
    """Which starts each pod of an owner has had, and how many of its pods did not serve at a time at most."""

    def __init__(self, scene: Scene, owner: str) -> None:
        self._scene = scene
        self._owner = owner
        self._seen: dict[Place, set[float]] = defaultdict(set)
        self.down = 0
        self.look()

    def look(self) -> None:
        sight = self._scene.sight
        pods = sight.pods_of(self._owner)
        for place in pods:
            if (reality := sight.reality(place)) is not None:
                self._seen[place].add(reality.started)
        self.down = max(self.down, sum(not sight.serves(place, pod) for place, pod in pods.items()))

    def watch(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            self._scene.advance(0.25)
            self.look()
        self._scene.check()

    @property
    def again(self) -> list[int]:
        """How often each pod was started again."""
        return [len(starts) - 1 for _, starts in sorted(self._seen.items())]


def web(scene: Scene, replicas: int = 4, **fields: object) -> str:
    return scene.rc(name="web", replicas=replicas, min_healthy_time=2, **fields)


def restart(scene: Scene) -> None:
    assert scene.ask(lambda: RC.restart(scene.call, "web")) is not None


def restart_pod(scene: Scene, place: Place) -> None:
    async def asked() -> Mutation:
        return (await restarting.restart(scene.call, *place)).mutation

    assert scene.ask(asked) is not None


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_r28_a_farm_that_takes_over_goes_on_with_the_pods_that_are_left(scene: Scene, end: str) -> None:
    scene.nodes(4)
    rc = web(scene)
    first = scene.farm()
    scene.advance(10.0)
    starts = Starts(scene, rc)
    restart(scene)
    starts.watch(3.0)
    assert 0 < sum(starts.again) < 4
    scene.run(getattr(first, end)())
    scene.farm("birch")
    starts.watch(90.0)
    assert (starts.again, starts.down, scene.status(rc).state) == ([1] * 4, 1, "converged")


def test_r28_a_second_restart_before_the_end_of_the_first_restarts_no_pod_a_third_time(scene: Scene) -> None:
    scene.nodes(4)
    rc = web(scene)
    scene.farm()
    scene.advance(10.0)
    starts = Starts(scene, rc)
    restart(scene)
    starts.watch(3.0)
    done = sum(starts.again)
    restart(scene)
    starts.watch(60.0)
    assert (sum(starts.again), starts.down) == (4 + done, 1)


def test_r28_a_person_who_restarts_a_pod_before_its_turn_takes_its_turn(scene: Scene) -> None:
    scene.nodes(4)
    rc = web(scene)
    scene.farm()
    scene.advance(10.0)
    starts = Starts(scene, rc)
    restart(scene)
    last = scene.places(rc)[-1]
    restart_pod(scene, last)
    starts.watch(60.0)
    assert starts.again == [1] * 4
    restart(scene)
    starts.watch(60.0)
    assert (starts.again, scene.status(rc).state) == ([2] * 4, "converged")


def test_r28_pods_that_come_during_a_restart_are_not_restarted(scene: Scene) -> None:
    scene.nodes(6)
    rc = web(scene, 3)
    scene.farm()
    scene.advance(10.0)
    starts, before = Starts(scene, rc), scene.places(rc)
    restart(scene)
    assert scene.ask(lambda: set_replicas(scene.call, "web", 6)) is not None
    starts.watch(60.0)
    new = [place for place in scene.places(rc) if place not in before]
    assert len(new) == 3
    assert sum(starts.again) == 3
    assert {intent.restart for intent in scene.sight.intents.values() if intent} == {1}


def test_r28_a_daemon_set_counts_a_restart_in_its_rate(scene: Scene) -> None:
    scene.nodes(4)
    file = {"name": "logs", "rate": 2, "min_health": 0, "pod": {"id": "log", "command": ["sleep", "9"]}}
    spec = DAEMON_SET.file.parse(file, "test")
    made = scene.ask(lambda: DAEMON_SET.create(scene.call, spec))
    assert made is not None
    scene.change(KEYS.record("daemonsets", made.change.id), **{"x-team": "a"})
    scene.farm()
    scene.advance(150.0)
    starts = Starts(scene, made.change.id)
    assert scene.ask(lambda: DAEMON_SET.restart(scene.call, "logs")) is not None
    starts.watch(50.0)
    assert sum(starts.again) == 2
    starts.watch(60.0)
    assert starts.again == [1] * 4
