"""What the agent does with any runtime: prepare before stop, no start in doubt, adoption (R26)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from farmd.agent.agent import Agent
from farmd.agent.errors import StartFailed
from farmd.agent.model import AgentConfig, Identity, Record, WantedPod
from farmd.agent.runtimes.runtime import Busy, Ended, Launch
from farmd.agent.supervisor import LEAVE_SECONDS
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.runtime.clock import SystemIds
from store.consul.client import ConsulClient
from store.keys import Keys
from store.manifests import Manifest, Restart
from store.reality import Exit, Reality
from tests.agents import sha_of
from tests.fleet import LIMIT
from tests.still_clock import StillClock
from tests.unit.agent.test_agent_obey import NoStore

FAST = Restart(initial=1.0, maximum=8.0)


def toy(*command: str) -> Manifest:
    return Manifest(id="web", runtime="toy", command=list(command), restart=FAST)  # type: ignore[arg-type]


OLD, NEW = toy("old"), toy("new")


class Toy:
    """A runtime in memory; ``world`` outlives an agent, as an engine does."""

    name = "toy"
    features = ("runtime.toy",)

    def __init__(self, world: dict[str, Identity]) -> None:
        self.world = world
        self.doubt = ""
        self.trouble = ""
        self.preparing = asyncio.Event()
        self.preparing.set()
        self.answering = asyncio.Event()
        self.answering.set()
        self.said: list[str] = []
        self.gone: Callable[[], None] = lambda: None

    async def look(self) -> None: ...

    async def run(self, wake: Callable[[], None]) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...

    async def answers(self) -> bool:
        return not self.doubt

    def preflight(self, manifest: Manifest, *, kept: bool = False) -> None: ...

    def old_user(self, identity: Identity, manifest: Manifest) -> str:
        return ""

    async def prepare(
        self, instance: str, manifest: Manifest, tell: Callable[[str], None], *, kept: bool = False
    ) -> None:
        self.said.append(f"prepare {manifest.command[0]}")
        await self.preparing.wait()
        if self.trouble:
            raise StartFailed(self.trouble)

    async def start(self, launch: Launch) -> Identity:
        self.said.append(f"start {launch.manifest.command[0]}")
        if launch.instance in self.world:
            raise Busy("still there")
        made = Identity(
            instance=launch.instance,
            manifest=launch.sha,
            start=launch.start,
            started=launch.started,
            runtime="toy",
        )
        self.world[launch.instance] = made
        await self.answering.wait()
        return made

    def find(self, instance: str) -> Identity | None:
        return self.world.get(instance)

    def strays(self) -> Iterable[Identity]:
        return [] if self.doubt else list(self.world.values())

    def lives(self, identity: Identity) -> bool:
        return self.world.get(identity.instance) == identity

    async def signal(self, identity: Identity, number: int) -> None:
        self.said.append("signal")
        self.world.pop(identity.instance, None)
        self.gone()

    def watch(self, identity: Identity, gone: Callable[[], None]) -> Callable[[], None]:
        self.gone = gone
        return lambda: None

    def end(self, instance: str, start: str, identity: Identity | None) -> Ended | None:
        return Ended(Exit(1.0, 0))

    async def tidy(self, needed: Sequence[Manifest], healthy: Sequence[Manifest]) -> None: ...

    async def remove(self, instance: str) -> None:
        self.said.append("remove")

    async def check(self, identity: Identity, manifest: Manifest, command: Sequence[str]) -> int:
        return 0

    async def execute(self, *_: Any) -> Any: ...

    async def network(self, identity: Identity) -> int | None: ...


class Bench:
    """An agent without a store, over one state directory."""

    def __init__(self, root: Path, world: dict[str, Identity]) -> None:
        self.clock = StillClock()
        self.toy = Toy(world)
        metrics = Metrics(CollectorRegistry())
        self.agent = Agent(
            AgentConfig(node="n1", state_dir=root),
            client=ConsulClient(NoStore(), clock=self.clock),
            keys=Keys(),
            clock=self.clock,
            rng=random.Random(1),
            ids=SystemIds(),
            recorder=metrics,
            progress=Progress(self.clock, metrics),
            environ={},
            runtimes=[self.toy],
        )

    async def __aenter__(self) -> Bench:
        self._lock = self.agent.state.locked("n1")
        self._lock.__enter__()
        # One thread takes turns, so that ``settle`` knows when all work in threads is over.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await self.agent._supervisor.adopt()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.agent._supervisor.leave()
        self._lock.__exit__(None, None, None)

    def want(self, index: int, manifest: Manifest | None) -> None:
        found = {} if manifest is None else {"web": WantedPod("web", index, sha_of(manifest), "rc", manifest)}
        self.agent.pods.obey(found)

    async def settle(self) -> None:
        """Rounds until nothing changes any more."""
        for _ in range(12):
            self.agent._supervisor.round()
            for _ in range(5):
                await asyncio.sleep(0)
            await asyncio.to_thread(lambda: None)

    async def prepare(self) -> None:
        """Run the old manifest, and begin to prepare the new one, which takes for ever."""
        self.want(7, OLD)
        await self.settle()
        self.toy.preparing.clear()
        self.want(8, NEW)
        await self.settle()

    def reality(self) -> Reality:
        return self.agent.reality()["web"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path / "first", {}) as made:
        yield made


async def test_another_manifest_is_prepared_before_the_old_one_is_stopped(bench: Bench) -> None:
    await bench.prepare()
    assert bench.toy.said == ["prepare old", "start old", "prepare new"]
    assert (bench.reality().manifest, bench.reality().phase) == (sha_of(OLD), "running")
    bench.toy.preparing.set()
    await bench.settle()
    assert bench.toy.said[3:] == ["signal", "start new"]
    assert (bench.reality().manifest, bench.reality().refused) == (sha_of(NEW), 0)


async def test_what_cannot_be_prepared_is_refused_and_the_old_one_stays(bench: Bench) -> None:
    bench.want(7, OLD)
    await bench.settle()
    bench.toy.trouble = "image web:2: no such image"
    bench.want(8, NEW)
    await bench.settle()
    told = bench.reality()
    assert (told.manifest, told.phase, told.intent, told.refused) == (sha_of(OLD), "running", 7, 8)
    assert told.reason == "cannot act on intent 8: image web:2: no such image"
    assert bench.toy.said == ["prepare old", "start old", "prepare new"]
    bench.clock.seconds += 1.0
    bench.toy.trouble = ""
    await bench.settle()
    assert (bench.reality().manifest, bench.reality().refused) == (sha_of(NEW), 0)


async def test_a_preparation_ends_when_its_manifest_is_not_wanted_any_more(bench: Bench) -> None:
    await bench.prepare()
    bench.want(9, OLD)
    await bench.settle()
    assert (bench.reality().manifest, bench.reality().intent, bench.reality().refused) == (sha_of(OLD), 9, 0)
    assert bench.toy.said == ["prepare old", "start old", "prepare new"]
    bench.want(10, NEW)
    bench.toy.preparing.set()
    await bench.settle()
    assert bench.reality().manifest == sha_of(NEW)


async def test_r26_a_runtime_that_cannot_tell_what_runs_starts_and_ends_nothing(bench: Bench) -> None:
    bench.want(7, OLD)
    await bench.settle()
    bench.toy.doubt = "the engine does not answer"
    hidden = bench.toy.world.pop("web")
    bench.want(8, NEW)
    await bench.settle()
    told = bench.reality()
    assert (told.phase, told.manifest, told.exits) == ("running", sha_of(OLD), [])
    assert told.reason == "the engine does not answer"
    bench.toy.doubt = ""
    bench.toy.world["web"] = hidden
    await bench.settle()
    assert bench.toy.said == ["prepare old", "start old", "prepare new", "signal", "start new"]
    assert bench.reality().reason == ""


async def test_an_agent_that_stops_its_workloads_ends_beside_a_silent_engine_and_says_what_it_left(
    bench: Bench,
) -> None:
    bench.want(7, OLD)
    await bench.settle()
    bench.toy.doubt = "the engine does not answer"
    intents = asyncio.create_task(asyncio.sleep(0))
    with capture_logs() as lines:
        stopping = asyncio.create_task(bench.agent._stop_workloads(intents))
        await bench.settle()
        async with asyncio.timeout(LIMIT):
            await stopping
    assert bench.clock.seconds - 1_000.0 <= OLD.stop.grace + 11.0
    assert list(bench.toy.world) == ["web"]
    assert [line["workloads"] for line in lines if line["event"] == "workloads.left"] == [
        {"web": "the engine does not answer"}
    ]


async def test_an_agent_that_stops_its_workloads_leaves_at_once_when_all_have_ended(bench: Bench) -> None:
    bench.want(7, OLD)
    await bench.settle()
    stopping = asyncio.create_task(bench.agent._stop_workloads(asyncio.create_task(asyncio.sleep(0))))
    await bench.settle()
    with capture_logs() as lines:
        async with asyncio.timeout(LIMIT):
            await stopping
    assert (bench.toy.world, lines) == ({}, [])


async def test_an_agent_that_ends_does_not_wait_for_an_image_that_is_being_pulled(bench: Bench) -> None:
    await bench.prepare()
    async with asyncio.timeout(LIMIT):
        await bench.agent._supervisor.leave()
    assert (list(bench.toy.world), bench.toy.said[-1]) == (["web"], "prepare new")


async def test_an_agent_that_ends_does_not_wait_for_a_start_that_no_engine_answers(tmp_path: Path) -> None:
    world: dict[str, Identity] = {}
    async with Bench(tmp_path, world) as former:
        former.toy.answering.clear()
        former.want(7, OLD)
        await former.settle()
        assert former.toy.said == ["prepare old", "start old"]
        async with asyncio.timeout(LIMIT):
            await former.agent._supervisor.leave()
        assert former.clock.seconds - 1_000.0 <= LEAVE_SECONDS
    async with Bench(tmp_path, world) as after:
        after.want(7, OLD)
        await after.settle()
        assert (after.toy.said, after.reality().phase) == ([], "running")


@pytest.mark.parametrize("doubt", ["", "the engine does not answer"])
async def test_r26_the_next_agent_adopts_a_workload_once_its_runtime_can_tell(
    tmp_path: Path, doubt: str
) -> None:
    world: dict[str, Identity] = {}
    async with Bench(tmp_path, world) as former:
        former.want(7, OLD)
        await former.settle()
    after = Bench(tmp_path, world)
    after.toy.doubt = doubt
    async with after:
        after.want(7, OLD)
        await after.settle()
        after.toy.doubt = ""
        await after.settle()
        assert (after.toy.said, after.reality().phase) == ([], "running")


async def test_r26_a_workload_without_a_record_is_adopted_and_stopped_once_it_is_proven_unwanted(
    bench: Bench,
) -> None:
    lost = Identity(instance="lost", manifest="f" * 64, start="s1", started=1.0, runtime="toy")
    bench.toy.world["lost"] = lost
    await bench.settle()
    assert bench.agent.reality()["lost"].phase == "running"
    bench.want(7, None)
    await bench.settle()
    assert (bench.toy.world, bench.toy.said) == ({}, ["signal", "remove"])
    assert bench.agent.reality() == {}


@pytest.mark.parametrize("file", ["instance.json", "process.json"])
async def test_r26_an_instance_that_cannot_be_read_is_left_alone_and_stops_no_other_pod(
    tmp_path: Path, file: str
) -> None:
    world: dict[str, Identity] = {}
    async with Bench(tmp_path, world) as former:
        former.want(7, OLD)
        await former.settle()
    unreadable = tmp_path / "instances" / "web" / file
    unreadable.unlink(missing_ok=True)
    unreadable.mkdir()
    async with Bench(tmp_path, world) as after:
        await after.settle()
        after.agent.pods.obey({name: WantedPod(name, 7, sha_of(OLD), "rc", OLD) for name in ("web", "other")})
        await after.settle()
        assert after.agent.reality()["other"].phase == "running"
        assert (sorted(world), after.toy.said) == (["other", "web"], ["prepare old", "start old"])


def test_records_of_older_agents_are_those_of_processes() -> None:
    assert Record(instance="web").runtime == "process"
    fields: dict[str, Any] = {"instance": "web", "manifest": "m", "start": "s", "started": 1.0}
    assert Identity(boot="b", shim=1, shim_ticks=1, pid=2, ticks=2, **fields).runtime == "process"
