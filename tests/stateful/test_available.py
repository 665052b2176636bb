"""R22: a start counts as available only after it was healthy for ``min_healthy_time``, on virtual time."""

from __future__ import annotations

import pytest

from farmd.commands.waiting import Look, convergence
from farmd.replication.commands import RC
from farmd.runtime.errors import WaitTimeout
from store import manifests
from tests.people import hello
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

CRASHES = ["sh", "-c", "sleep 2; exit 1"]


def crashing(scene: Scene, sha: str, seconds: float) -> None:
    """Every start of a manifest ends after so many seconds, on every node."""
    for agent in scene.agents.values():
        agent.lives[sha] = seconds


def update(scene: Scene, command: list[str]) -> None:
    """``rc update --now`` to another command."""
    spec = RC.file.parse(hello(name="web", replicas=4, min_healthy_time=10, pod_command=command), "test")
    assert scene.ask(lambda: RC.update(scene.call, spec, now=True))


def digest_of(command: list[str]) -> str:
    """The digest of the manifest with a command."""
    pod = RC.file.parse(hello(pod_command=command), "test").pod
    return manifests.digest(manifests.canonical(pod))


def on(scene: Scene, rc: str, sha: str) -> int:
    """How many pods have a manifest."""
    return sum(pod.manifest == sha for pod in scene.sight.pods_of(rc).values())


def test_r22_an_update_to_what_does_not_stay_up_stops_at_the_floor(scene: Scene) -> None:
    scene.nodes(4)
    rc = scene.rc(name="web", replicas=4, min_healthy_time=10)
    scene.farm()
    scene.advance(20.0)
    assert scene.status(rc).state == "converged"
    good = scene.sight.rcs[rc].manifest
    bad = digest_of(CRASHES)
    crashing(scene, bad, 2.0)
    update(scene, CRASHES)
    for _ in range(60):
        scene.advance(1.0)
        assert (on(scene, rc, good), on(scene, rc, bad)) == (3, 1)
    assert scene.status(rc).state == "progressing"
    update(scene, ["sleep", "10"])
    scene.advance(60.0)
    assert (on(scene, rc, bad), scene.status(rc).state) == (0, "converged")
    scene.check()


def test_r22_a_wait_for_what_does_not_stay_up_does_not_say_converged(scene: Scene) -> None:
    scene.nodes(1)
    scene.farm()
    command = ["sh", "-c", "sleep 4; exit 1"]
    crashing(scene, digest_of(command), 4.0)
    rc = scene.rc(name="web", replicas=1, min_healthy_time=10, pod_command=command)
    looks: list[Look] = []
    with pytest.raises(WaitTimeout):
        scene.run(convergence(scene.call, RC, rc, 60.0, looks.append))
    assert max(look.healthy for look in looks) == 1
    assert not any(look.converged or look.state == "converged" for look in looks)


def test_r22_a_farm_that_starts_counts_anew_and_rewrites_no_status(scene: Scene) -> None:
    scene.nodes(4)
    rc = scene.rc(name="web", replicas=4, min_healthy_time=10)
    scene.farm()
    scene.advance(60.0)
    good, told = scene.sight.rcs[rc].manifest, scene.read(KEYS.status("rcs", rc))
    scene.run(scene.farms["ash"].stop())
    scene.farm("birch")
    assert scene.read(KEYS.status("rcs", rc)) == told
    update(scene, ["sleep", "10"])
    scene.advance(5.0)
    assert on(scene, rc, good) == 4, "it saw the pods healthy for 8 s"
    scene.advance(5.0)
    assert on(scene, rc, good) == 3


def test_r22_agents_clocks_do_not_matter(scene: Scene) -> None:
    """Each pod is replaced no sooner than 10 s after the one before it, and no later than 15 s."""
    scene.nodes(4)
    for number, agent in enumerate(scene.agents.values()):
        agent.skew = 86_400.0 * (number - 2)
    rc = scene.rc(name="web", replicas=4, min_healthy_time=10)
    scene.farm()
    scene.advance(30.0)
    assert scene.status(rc).state == "converged"
    good, left = scene.sight.rcs[rc].manifest, []
    update(scene, ["sleep", "10"])
    for _ in range(60):
        scene.advance(1.0)
        left.append(on(scene, rc, good))
    times = [left.count(number) for number in (3, 2, 1)]
    assert all(10 <= seconds <= 15 for seconds in times), left
    assert scene.status(rc).state == "converged"
