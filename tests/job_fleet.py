"""Farms that run jobs over one embedded server on virtual time, with agents whose members end as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from farmd.commands.mutation import Call, commit
from farmd.jobs.commands import JOB, run_of
from farmd.jobs.placing import slot_of
from store import codec
from store.entry import Entry
from store.features import JOBS
from store.jobs import Job, JobStatus, Run
from store.keys import is_sentinel
from store.pods import Place, Pod
from store.reality import Exit, Health, Intent, Reality
from tests.node_farms import KEYS, Fleet, fleet_of

SECONDS = 0.2
GOOD = 0


def document(name: str = "bert", **fields: Any) -> dict[str, Any]:
    """A job's file: two workers, unless said otherwise; fields of the type are given as ``worker``."""
    worker = {"name": "worker", "replicas": 2, "pod": {"id": "bert", "command": ["/bin/true"]}}
    return {"name": name, "types": [worker | fields.pop("worker", {})], **fields}


class JobFleet:
    """Nodes whose agents run members: each runs until ``ends`` gives it an exit code, by its instance."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.clock = fleet.clock
        self.call = Call(fleet.client, KEYS, fleet.clock, fleet.ids, "user/ada@host")
        self.ends: dict[str, int | Exit] = {}
        self.rule: Callable[[str], int | Exit | None] = lambda _: None
        self.ran: list[str] = []
        self.deaf: set[str] = set()
        self.ports: tuple[str, ...] = ("job",)
        self._ports: dict[Place, int] = {}
        self._at: dict[str, str] = {}
        self._said: dict[Place, tuple[Intent, int, str]] = {}

    async def arrive(self, *names: str, **fields: Any) -> None:
        """Nodes whose agents know jobs."""
        await self.fleet.arrive(*names, features=[JOBS], **fields)

    async def run(self, **fields: Any) -> Job:
        """``farmctl job run``."""
        spec = JOB.file.parse(document(**fields), "bert.yaml")
        await commit(self.call, await JOB.create(self.call, spec))
        return await self.job(spec.name)

    # -- what is there ---------------------------------------------------------------------------
    async def job(self, name: str = "bert") -> Job:
        return (await JOB.records(self.fleet.client, KEYS).find(name)).record

    async def state(self, job: Job) -> Run:
        return await run_of(self.call, job)

    async def status(self, job: Job) -> JobStatus | None:
        entry = await self.fleet.client.read(KEYS.status("jobs", job.id))
        return None if entry is None else codec.decode(JobStatus, entry.value, entry.key)

    async def pods(self, job: Job) -> dict[str, Pod]:
        """The job's pods by instance."""
        found = await self.records(KEYS.pods(job.id), Pod)
        return {KEYS.pod_parts(key)[2]: pod for key, pod in found.items()}

    async def records(self, prefix: str, kind: Any) -> dict[str, Any]:
        page = await self.fleet.client.list(prefix)
        entries = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
        return {entry.key: codec.decode(kind, entry.value, entry.key) for entry in entries}

    async def intents(self) -> dict[Place, tuple[Intent, int]]:
        page = await self.fleet.client.list(KEYS.tree("intent"))
        entries = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
        return {
            KEYS.intent_parts(each.key): (codec.decode(Intent, each.value, each.key), each.modify_index)
            for each in entries
        }

    async def realities(self) -> dict[str, Reality]:
        """What agents say, by instance."""
        found = await self.records(KEYS.tree("reality"), Reality)
        return {KEYS.reality_parts(key)[1]: said for key, said in found.items()}

    def runs(self, job: Job) -> list[str]:
        """The members that ran, each as ``type/index~attempt``, in the order of their starts."""
        found = [slot_of(job, instance) for instance in self.ran]
        return [f"{each[0]}~{each[1]}" for each in found if each is not None]

    def where(self, instance: str) -> str:
        """The node on which a member ran last; empty: none."""
        return self._at.get(instance, "")

    async def until(self, done: Callable[[], Any], within: float = 120.0) -> Any:
        """Let time pass until ``done`` gives something true."""
        for _ in range(int(within / SECONDS)):
            if found := await done():
                return found
            await self.clock.advance(SECONDS)
        raise AssertionError(f"not within {within:g} s")

    async def over(self, job: Job, within: float = 300.0) -> Run:
        """The run of a job, once it has an outcome."""

        async def outcome() -> Run | None:
            run = await self.state(job)
            return run if run.outcome else None

        found: Run = await self.until(outcome, within)
        return found

    # -- the agents ------------------------------------------------------------------------------
    async def act(self) -> None:
        """Act on intents until cancelled."""
        while True:
            await self._round()
            await self.clock.sleep(SECONDS / 2)

    async def _round(self) -> None:
        wanted = await self.intents()
        for place, (intent, index) in wanted.items():
            if place[0] not in self.deaf:
                await self._obey(place, intent, index)
        for place in self._said.keys() - wanted.keys():
            if place[0] not in self.deaf:
                await self.fleet.client.delete(KEYS.reality(*place))
                del self._said[place]

    async def _obey(self, place: Place, intent: Intent, index: int) -> None:
        instance, before = place[1], self._said.get(place)
        self._at[instance] = place[0]
        end = self.ends.get(instance, self.rule(instance))
        phase = "held" if intent.hold else "running" if end is None else "done"
        if before is not None and before[2] == "done":
            phase = "done"
        if phase != "held" and (before is None or before[2] == "held"):
            self.ran.append(instance)
        if before is not None and before[1:] == (index, phase):
            return
        now = self.clock.now()
        exits = [] if phase != "done" else [end if isinstance(end, Exit) else Exit(now, end or 0)]
        good = phase != "done" or exits[-1].code == 0
        said = Reality(
            manifest=intent.manifest,
            owner=intent.owner,
            phase=phase,  # type: ignore[arg-type]
            started=now,
            intent=index,
            ports=dict.fromkeys(self.ports, self._ports.setdefault(place, 20_000 + len(self._ports))),
            exits=exits,
            health=Health("passing" if good else "critical", now),
        )
        await self.fleet.put(KEYS.reality(*place), said)
        self._said[place] = intent, index, phase


@asynccontextmanager
async def job_fleet(*nodes: str, farms: int = 1, **settings: Any) -> AsyncIterator[JobFleet]:
    """A cluster with nodes and farms that run jobs."""
    async with fleet_of(*nodes) as fleet:
        jobs = JobFleet(fleet)
        await jobs.arrive(*nodes)
        acting = asyncio.create_task(jobs.act())
        for number in range(farms):
            await fleet.start(f"f{number}", kinds=("jobs", "nodes"), **settings)
        try:
            yield jobs
        finally:
            acting.cancel()
            with suppress(asyncio.CancelledError):
                await acting
