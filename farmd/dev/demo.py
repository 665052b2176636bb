"""``make demo``: a fleet on this machine, from a command to running processes, in under a minute.

The demo runs ``farmctl`` like a person, kills processes, and shows how the fleet recovers. Every step has a
time limit and is judged by the store and the workloads' answers (``scene.py``). The first step that fails
ends the demo non-zero with its reason. No process outlives the demo.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import aiohttp
import yaml
from rich.console import Console

from farmd import overview
from farmd.dev import tree
from farmd.dev.cluster import ClusterFailed, LocalCluster
from farmd.dev.plan import environment
from farmd.overview import PodRow
from farmd.runtime.clock import SystemClock
from store.consul.client import ConsulClient
from store.consul.transport import connect
from store.errors import StoreError
from store.keys import Keys
from store.ports import Clock
from store.words import count_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/hello.yaml"
SECOND = EXAMPLE.with_name("rollout.yaml")
LOOK_SECONDS = 0.25
# Consul frees the locks of a dead farm after about twice the TTL of 10 s.
TAKEOVER_SECONDS = 40.0
STEP_SECONDS = 20.0
ROLLOUT_SECONDS = 40.0
REVERTED = 9
MOST_CONTROLLERS = 12


class StepFailed(Exception):
    """A step did not succeed; one line with the reason."""


class Demo:
    """The steps, over a running cluster."""

    def __init__(self, cluster: LocalCluster, client: ConsulClient, http: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._client = client
        self._http = http
        self._keys = Keys()
        self._clock = SystemClock()
        self._began = self._clock.mono()
        self._console = Console(highlight=False, soft_wrap=True)
        self._shown: list[str] = []

    # -- the story -----------------------------------------------------------------------------
    async def play(self) -> None:
        """All steps in order.

        Raises:
            StepFailed: the first step that failed.
        """
        self.say("a replication controller, from its file")
        await self.farmctl("rc", "create", "-f", str(EXAMPLE))
        await self.until("hello runs", lambda scene: scene.controllers["hello"].converged)

        scene = await self._share()
        kept, alive = "hello", scene.controllers["hello"].owner
        dead = next(seen.owner for seen in scene.controllers.values() if seen.owner != alive)
        orphans = [seen.name for seen in scene.controllers.values() if seen.owner == dead]

        self.say(f"kill -9 {dead}, the owner of {', '.join(orphans)}; Consul frees its locks in about 20 s")
        killed_at = self._clock.mono()
        self._cluster.kill(dead)

        self.say(f"meanwhile {alive} continues: scale {kept} to 5")
        await self.farmctl("rc", "set-replicas", kept, "5")
        await self.until(f"{kept} runs five times", lambda scene: has(scene, kept, 5))
        await self._kill_a_workload(kept)
        await self._roll(kept)
        await self._await_takeover(alive, orphans, killed_at)

        self.say("delete everything")
        for name in scene.controllers:
            await self.farmctl("rc", "delete", name, "--cascade", "--yes")
        await self.until("nothing is left in the store", lambda scene: not scene.controllers)
        await self._no_workload_left()

    async def _share(self) -> Scene:
        """Create small controllers until each farm owns one, because an item's preferred farm is random."""
        self.say("more of them, until each farm has work of its own")
        for number in range(2, MOST_CONTROLLERS + 1):
            await self.farmctl("rc", "create", "-f", "-", text=_another(number))
            name = f"hello-{number}"
            scene = await self.until(f"{name} runs", lambda scene, name=name: runs(scene, name))  # type: ignore[misc]
            if len({seen.owner for seen in scene.controllers.values()}) == 2:
                return scene
        raise StepFailed(f"one farm owns all of {MOST_CONTROLLERS} controllers")

    async def _roll(self, name: str) -> None:
        """A second version by a rollout, and a third that fails its health check, while clients ask."""
        visits = Visits(self._client, self._keys, self._http, self._clock, name)
        visitor = asyncio.create_task(visits.run())
        try:
            self.say(f"roll a second version of {name} out, while clients keep sending requests")
            await self.farmctl("rc", "update", "-f", str(SECOND), "--wait")
            self.say("a third version that fails its health check; it is reverted automatically")
            await self.farmctl("rc", "update", "-f", "-", "--wait", text=_broken(), code=REVERTED)
        finally:
            visitor.cancel()
        await self.until(f"{name} runs the second version", lambda scene: greets(scene, name))
        self.note(visits.told())
        if visits.failed or not visits.answers["hello again"]:
            raise StepFailed(f"clients of {name}: {visits.told()}")

    async def _await_takeover(self, alive: str, orphans: list[str], killed_at: float) -> None:
        self.say(f"{', '.join(orphans)} ran on; {alive} takes over once the dead farm's locks are free")
        before = {(pod.node, pod.instance): pod.pid for pod in await self._pods(orphans)}
        await self.until(
            f"{alive} owns {', '.join(orphans)}",
            lambda scene: all(
                scene.controllers[name].owner == alive and scene.controllers[name].converged
                for name in orphans
            ),
            TAKEOVER_SECONDS,
        )
        after = {(pod.node, pod.instance): pod.pid for pod in await self._pods(orphans)}
        same = sum(after.get(where) == pid for where, pid in before.items())
        seconds = self._clock.mono() - killed_at
        self.note(f"{seconds:.1f} s after the kill; processes untouched: {same} of {len(before)}")
        if after != before:
            raise StepFailed(f"the takeover touched pods: {before} became {after}")
        await self.farmctl("rc", "set-replicas", orphans[0], "3")
        await self.until(f"{alive} works on {orphans[0]}", lambda scene: has(scene, orphans[0], 3))

    async def _pods(self, names: list[str]) -> list[PodRow]:
        scene = await self._look()
        return [pod for name in names for pod in scene.controllers[name].pods]

    async def _kill_a_workload(self, name: str) -> None:
        before = (await self._look()).controllers[name].pods[0]
        self.say(f"kill -9 the process of {before.instance} on {before.node}, pid {before.pid}")
        os.kill(before.pid, signal.SIGKILL)

        def restarted(scene: Scene) -> bool:
            pods = {(pod.node, pod.instance): pod for pod in scene.controllers[name].pods}
            now = pods.get((before.node, before.instance))
            return now is not None and now.pid not in (0, before.pid) and scene.controllers[name].converged

        scene = await self.until("its agent started it again", restarted)
        now = next(pod for pod in scene.controllers[name].pods if pod.node == before.node)
        self.note(f"pid {before.pid} -> {now.pid}, restarts {before.restarts} -> {now.restarts}")

    async def _no_workload_left(self) -> None:
        """Fail if a process other than the cluster's own runs below the keeper."""
        ours = set(self._cluster.pids.values())
        deadline = self._clock.mono() + STEP_SECONDS
        while True:
            keeper = tree.descendants(os.getpid())[:1]
            left = [pid for pid in tree.descendants(os.getpid()) if pid not in ours and pid not in keeper]
            if not left:
                break
            if self._clock.mono() > deadline:
                raise StepFailed(f"workloads are left: {left}")
            await self._clock.sleep(LOOK_SECONDS)
        self.note("workload processes left: 0")

    # -- looking and telling -------------------------------------------------------------------
    async def until(self, what: str, done: Callable[[Scene], bool], seconds: float = STEP_SECONDS) -> Scene:
        """Read the scene repeatedly, show each change, return once ``done`` is true."""
        deadline = self._clock.mono() + seconds
        while True:
            scene = await self._look()
            self._show(scene)
            if done(scene):
                self.note(f"[green]ok[/green]: {what}")
                return scene
            if self._clock.mono() > deadline:
                raise StepFailed(f"{what}: not so after {seconds:.0f} s; {'; '.join(scene.lines())}")
            await self._clock.sleep(LOOK_SECONDS)

    async def _look(self) -> Scene:
        try:
            return await look(self._client, self._keys, self._http)
        except StoreError as error:
            raise StepFailed(f"the store cannot be read: {error.message}") from error

    def _show(self, scene: Scene) -> None:
        """Print the lines that changed."""
        for line in scene.lines():
            if line not in self._shown:
                self.note(f"[dim]{line}[/dim]")
        self._shown = scene.lines()

    def say(self, text: str) -> None:
        """Print the beginning of a step."""
        self._console.print(f"[bold]{self._clock.mono() - self._began:5.1f} s  {text}[/bold]")

    def note(self, text: str) -> None:
        """Print an observation."""
        self._console.print(f"         {text}")

    async def farmctl(self, *arguments: str, text: str = "", code: int = 0) -> None:
        """Run farmctl like a person, and print its output; ``code``: how it must end."""
        self.note(f"$ farmctl {' '.join(_short(argument) for argument in arguments)}")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "farmd.cli", *arguments),
            env={**environment(dict(os.environ)), "CONSUL_HTTP_ADDR": self._cluster.store, "NO_COLOR": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        async with asyncio.timeout(ROLLOUT_SECONDS if "--wait" in arguments else STEP_SECONDS):
            out, _ = await process.communicate(text.encode())
        for line in out.decode().splitlines():
            self.note(f"  {line}")
        if process.returncode != code:
            raise StepFailed(f"farmctl {' '.join(arguments)} ended with code {process.returncode}")


def _another(number: int) -> str:
    """The example file with another name and one replica."""
    document = yaml.safe_load(EXAMPLE.read_text())
    document |= {"name": f"hello-{number}", "replicas": 1}
    document["pod"]["id"] = f"hello-{number}"
    return yaml.safe_dump(document)


def _broken() -> str:
    """The second version, but its health check fails."""
    document = yaml.safe_load(SECOND.read_text())
    document["pod"]["args"] = [text.replace("200", "500") for text in document["pod"]["args"]]
    return yaml.safe_dump(document)


def _short(argument: str) -> str:
    return os.path.relpath(argument) if argument.startswith("/") else argument


async def _run(cluster: LocalCluster) -> None:
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    client = connect({}, SystemClock(), address=cluster.store)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await Demo(cluster, client, http).play()
    finally:
        await client.close()


@contextmanager
def _signals() -> Iterator[None]:
    """Handle SIGTERM like ^C, so that every ``finally`` runs."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> int:
    """Run the demo; 0 if every step succeeded and no process is left."""
    clock = SystemClock()
    began = clock.mono()
    with _signals():
        cluster = LocalCluster()
        try:
            with cluster:
                print("a store, two farms and five agents, as processes of their own", flush=True)
                cluster.wait_ready()
                asyncio.run(_run(cluster))
        except KeyboardInterrupt:
            return _ended(130, "stopped")
        except (StepFailed, ClusterFailed, TimeoutError) as error:
            return _ended(1, f"FAILED: {error}")
    left = tree.descendants(os.getpid())
    if left or Path(cluster.plan.folder).exists():
        return _ended(1, f"FAILED: left behind: processes {left}, {cluster.plan.folder}")
    return _ended(0, f"done in {clock.mono() - began:.0f} s; processes left: {len(left)}")


def _ended(code: int, text: str) -> int:
    print(text, file=sys.stderr if code else sys.stdout, flush=True)
    return code


# The state of the fleet at one moment, as the demo shows it.
#
# All figures are measured: controllers, pods and owners are read from the store, answers from the workloads
# over HTTP. No figure is taken from the demo's own commands.


ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class SeenController:
    """One controller: its owner, its desired count, its pods, and each pod's answer."""

    name: str
    owner: str
    desired: int
    pods: tuple[PodRow, ...]
    answers: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def healthy(self) -> int:
        """Pods that pass their health check."""
        return sum(pod.healthy for pod in self.pods)

    @property
    def answering(self) -> int:
        """Pods whose process answers with this pod's own node and instance."""
        return sum(self.answers.get(place(pod), "").endswith("/".join(place(pod))) for pod in self.pods)

    @property
    def converged(self) -> bool:
        """Whether the desired number of pods exist, pass their checks and answer."""
        return len(self.pods) == self.healthy == self.answering == self.desired

    def line(self) -> str:
        """One line for people."""
        nodes = ",".join(sorted(pod.node.removeprefix("node-") for pod in self.pods)) or "-"
        return (
            f"{self.name}: owner {self.owner or 'nobody'}, {self.desired} wanted, {len(self.pods)} placed"
            f" (nodes {nodes}), {self.healthy} healthy, {self.answering} answer"
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """The fleet at one moment."""

    controllers: dict[str, SeenController]
    farms: tuple[str, ...]
    nodes: int

    def lines(self) -> list[str]:
        """One line for the fleet, and one for each controller."""
        pods = Counter(pod.node for seen in self.controllers.values() for pod in seen.pods)
        counts = f"{count_of(self.nodes, 'node')}; {count_of(pods.total(), 'pod')}"
        first = f"farms {', '.join(self.farms) or 'none'}; {counts}"
        return [first, *(seen.line() for seen in self.controllers.values())]


def place(pod: PodRow) -> tuple[str, str]:
    """(node, instance)."""
    return pod.node, pod.instance


async def look(client: ConsulClient, keys: Keys, http: aiohttp.ClientSession) -> Scene:
    """Read the store, then send a request to every workload in it."""
    owners = (await overview.owners(client, keys)).values()
    pods = (await overview.pods(client, keys)).placed
    nodes = await overview.nodes(client, keys)
    told = await asyncio.gather(*(answer(http, pod) for pod in pods))
    answers = dict(zip(map(place, pods), told, strict=True))
    seen = {
        row.record.name: SeenController(
            name=row.record.name,
            owner=row.owner,
            desired=row.desired,
            pods=(mine := tuple(pod for pod in pods if pod.owner == row.record.id)),
            answers={place(pod): answers[place(pod)] for pod in mine},
        )
        for row in sorted((row for found in owners for row in found.rows), key=lambda row: row.record.name)
    }
    farms = tuple(member.id for member in await overview.farms(client, keys))
    return Scene(seen, farms, sum(row.agent is not None for row in nodes.rows))


async def answer(http: aiohttp.ClientSession, pod: PodRow) -> str:
    """A workload's answer; empty without one."""
    if "http" not in pod.ports:
        return ""
    try:
        async with http.get(f"http://127.0.0.1:{pod.ports['http']}/") as response:
            return (await response.text()).strip() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError):
        return ""


def greets(scene: Scene, name: str) -> bool:
    """Whether every pod of a controller is of the second version."""
    seen = scene.controllers[name]
    return seen.converged and all(text.startswith("hello again") for text in seen.answers.values())


def runs(scene: Scene, name: str) -> bool:
    """Whether a farm has a controller, which is converged."""
    return scene.controllers[name].owner != "" and scene.controllers[name].converged


def has(scene: Scene, name: str, replicas: int) -> bool:
    """Whether a controller is converged at so many replicas."""
    seen = scene.controllers[name]
    return seen.desired == replicas and seen.converged


# Clients of a controller, as the demo counts their answers.
#
# They ask as behind a load balancer: only pods that are healthy, and the next pod if one does not answer. A
# visit fails if no pod answers it.

BETWEEN_SECONDS = 0.02
FRESH_VISITS = 10


class Visits:
    """One visit after the other, each at another pod; ``answers`` counts them by their greeting."""

    def __init__(
        self, client: ConsulClient, keys: Keys, http: aiohttp.ClientSession, clock: Clock, instance: str
    ) -> None:
        self._client, self._keys, self._http, self._clock = client, keys, http, clock
        self._instance = instance
        self.answers: Counter[str] = Counter()
        self.failed = 0

    async def run(self) -> None:
        """Visit until cancelled."""
        while True:
            found = await overview.pods(self._client, self._keys)
            pods = [pod for pod in found.placed if pod.instance == self._instance and pod.healthy]
            for number in range(FRESH_VISITS):
                first = number % max(1, len(pods))
                for pod in chain(pods[first:], pods[:first]):
                    if text := await answer(self._http, pod):
                        self.answers[text.partition(" from ")[0]] += 1
                        break
                else:
                    self.failed += 1
                await self._clock.sleep(BETWEEN_SECONDS)

    def told(self) -> str:
        """How many visits were answered, by which version, and how many were not."""
        told = ", ".join(f"{count} with {greeting!r}" for greeting, count in sorted(self.answers.items()))
        return f"visits answered: {self.answers.total()} ({told}); failed: {self.failed}"


if __name__ == "__main__":
    sys.exit(main())
