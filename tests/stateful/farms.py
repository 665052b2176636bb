"""A farm on virtual time as its service manager sees it: started, stopped, killed, frozen, started again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from farmd.config.sections import HousekeepingSection
from farmd.farm.farm import Farm
from farmd.farm.plan import FarmSettings
from farmd.kinds import KINDS
from farmd.observe.progress import Progress
from farmd.process.farm_service import wire_farm
from farmd.rollout.gates import Ask
from farmd.rollout.judgement import GateAnswer
from store import policies
from store.consul.client import ConsulClient
from store.embedded.server import EmbeddedServer
from store.errors import Conflict, Retry, StoreError
from store.keys import Keys
from store.ports import Clock
from tests.fleet import Inbox
from tests.recorders import CountingRecorder
from tests.stateful.lines import Door, Gate, Hourglass, Line
from tests.virtual import SeededIds

RESTART_SECONDS = 5.0
TIMES = {"ttl": 10.0, "settle": 0.1, "patience": 1.0, "stable": 1.0, "lost_after": 8.0}
THAW_AFTER = 3.0
OWN_TREES_PAUSE = 2.0


def moody(seed: str) -> Ask:
    """Gates that mostly pass, and now and then fail or say nothing."""
    rng = random.Random(seed)

    async def ask(_: policies.Gate) -> GateAnswer:
        (result,) = rng.choices(("pass", "fail", "none"), (7, 2, 1))
        return GateAnswer(result, "as it pleases")  # type: ignore[arg-type]

    return ask


@dataclass
class VirtualFarm:
    """One process named ``name``; every start is a new one with a new line, clock and randomness.

    ``ask`` answers for its gates; None: they are moody.
    """

    name: str
    server: EmbeddedServer
    keys: Keys
    clock: Clock
    enter: Callable[[str], None]
    housekeeping: HousekeepingSection
    failures: list[str]
    selector: str = ""
    own_trees_pause: float = OWN_TREES_PAUSE
    ask: Ask | None = None
    inbox: Inbox = field(default_factory=Inbox)
    farm: Farm | None = None
    task: asyncio.Task[None] | None = None
    starts: int = 0
    frozen: bool = False

    @property
    def alive(self) -> bool:
        return self.task is not None

    @property
    def ready(self) -> bool:
        return self.farm is not None and self.farm.ready.is_set() and not self.frozen

    async def start(self) -> None:
        """Start the process; it is started again whenever it ends by an error, as systemd would."""
        if self.task is not None:
            return
        self.starts += 1
        self.frozen = False
        self.process = Gate()
        self.stopping = asyncio.Event()
        door = Door(self.server, f"farm/{self.name}", self.enter)
        self.line = Line(door, self.clock, self.process, random.Random(f"line {self.name}/{self.starts}"))
        self.hourglass = Hourglass(self.clock, self.process)
        self.task = asyncio.create_task(self._serve(), name=f"farm-{self.name}")

    async def stop(self) -> None:
        """A clean stop: SIGTERM, awaited."""
        if self.task is not None:
            self.thaw()
            self.stopping.set()
            await self.task
            self.task = self.farm = None

    async def kill(self) -> None:
        """SIGKILL: nothing that it would still have sent arrives, its session is left to expire."""
        task, self.task = self.task, None
        if task is not None:
            self.line.dead = True
            task.cancel()
            self.thaw()
            await asyncio.gather(task, return_exceptions=True)
            self.farm = None

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True
        self.process.set(True)

    def thaw(self) -> None:
        """SIGCONT."""
        self.frozen = False
        self.process.set(False)

    async def _serve(self) -> None:
        ids = SeededIds(_seed(self.name, self.starts))
        rng = random.Random(f"{self.name}/{self.starts}")
        while not self.stopping.is_set():
            try:
                await self._once(ids, rng)
            except Conflict:
                await self.hourglass.sleep(RESTART_SECONDS)  # the name is taken until its session is over
            except StoreError as error:
                if error.retry is Retry.NEVER:
                    self.failures.append(f"{self.name} ended by {error.code}: {error.message}")
                await self.hourglass.sleep(RESTART_SECONDS)
            except Exception as error:
                self.failures.append(f"{self.name} ended by {type(error).__name__}: {error}")
                raise

    async def _once(self, ids: SeededIds, rng: random.Random) -> None:
        recorder = CountingRecorder()
        client = ConsulClient(self.line, clock=self.hourglass)
        self.farm = await wire_farm(
            settings=FarmSettings(name=self.name, selector=self.selector, **TIMES),
            client=client,
            keys=self.keys,
            clock=self.hourglass,
            rng=rng,
            ids=ids,
            recorder=recorder,
            progress=Progress(self.hourglass, recorder),
            alerter=self.inbox,
            kinds=KINDS,
            thaw_after=THAW_AFTER,
            own_trees_pause=self.own_trees_pause,
            sections={
                "housekeeping": self.housekeeping,
                "rollouts": self.ask or moody(f"gates {self.name}/{self.starts}"),
            },
        )
        try:
            await self.farm.start(self.stopping)
        finally:
            self.farm = None


def _seed(name: str, start: int) -> int:
    return int.from_bytes(f"{name}/{start}".encode()[-8:], "big")
