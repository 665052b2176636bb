"""A whole fleet on virtual time: an embedded store, farms, nodes without machines, and people.

Everything runs on one virtual loop; between two calls of ``advance`` nothing happens. What must hold at
every moment is asked by ``check``, what must come true once all is well again by ``converge``.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import structlog

from farmd.commands.mutation import Call, Mutation, commit
from farmd.config.sections import HousekeepingSection
from store import checkpoint, registration
from store.consul.client import ConsulClient
from store.embedded.server import EmbeddedServer, InProcessTransport
from store.entry import Entry
from store.errors import StoreError
from store.keys import Keys
from store.locks import Holder
from store.selectors import parse
from tests import logs
from tests.stateful.agents import SimulatedAgent
from tests.stateful.farms import VirtualFarm
from tests.stateful.goals import unfinished, unreferenced
from tests.stateful.lines import Door
from tests.stateful.sight import Sight
from tests.stateful.witness import KNOWN_AFTER, Witness
from tests.virtual import SeededIds
from tests.virtual_loop import LoopClock, VirtualLoop

KEYS = Keys()
# Not long before the end of a UTC hour, so that the audit log's first hour is over early.
START = 1_800_000_000.0 - 240.0
FARMS = ("ash", "birch", "cedar")


class Fleet:
    """The world, its people's hands, and what is wrong with it.

    ``selectors`` are those of farms that share controllers and daemon sets by labels, by farm.
    """

    def __init__(
        self,
        housekeeping: HousekeepingSection,
        selectors: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.loop = VirtualLoop()
        self.clock = LoopClock(self.loop, START)
        self.logged: list[str] = []
        self.failures: list[str] = []
        self.server = EmbeddedServer(self.clock, rng=random.Random(1), ids=SeededIds())
        self.witness = Witness(self.server, KEYS, self.clock, self._behind)
        self.client = self.client_of("people")
        self.hand = self.client_of("hand")
        self.ids = SeededIds(11)
        self.call = Call(self.client, KEYS, self.clock, self.ids, "user/ada@desk", "testing")
        self.farms = {name: self._farm(name, housekeeping, selectors.get(name, "")) for name in FARMS}
        self.agents: dict[str, SimulatedAgent] = {}
        self.evicted: set[str] = set()
        self.corrupted: dict[str, tuple[int, Entry]] = {}
        structlog.configure(
            processors=[self._log],
            wrapper_class=structlog.make_filtering_bound_logger(40),
            cache_logger_on_first_use=False,
        )
        self.cluster = self.run(registration.register_cluster(self.client, KEYS, self.ids))

    def _farm(self, name: str, housekeeping: HousekeepingSection, selector: str) -> VirtualFarm:
        return VirtualFarm(
            name,
            self.server,
            KEYS,
            self.clock,
            self.witness.enter,
            housekeeping,
            self.failures,
            selector,
        )

    def _log(self, logger: Any, method: str, event: dict[str, Any]) -> Any:
        if event.get("event") == "worker.crashed":
            text = "".join(traceback.format_exception(event["exc_info"]))
            self.failures.append(f"a worker crashed: {text}")
        self.logged.append(f"{self.clock.now() % 100_000:.2f} {event}")
        raise structlog.DropEvent

    def _behind(self, farm: str) -> bool:
        """Whether a farm may not know yet what happened lately."""
        line = self.farms[farm].line
        return line.troubled or self.clock.mono() - line.faulted_at < 5 * KNOWN_AFTER

    # -- time ----------------------------------------------------------------------------------
    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run(work)  # type: ignore[arg-type]

    def advance(self, seconds: float) -> None:
        self.loop.advance(seconds)

    def close(self) -> None:
        for farm in self.farms.values():
            if farm.alive:
                farm.line.dead = True
                farm.thaw()
        self.loop.end()
        logs.configure()

    def leap(self, seconds: float) -> None:
        """Everybody's wall clock is set forward; no time passes."""
        self.clock.leap(seconds)

    # -- people --------------------------------------------------------------------------------
    def client_of(self, who: str) -> ConsulClient:
        """A client whose line never fails."""
        door = Door(self.server, who, self.witness.enter)
        return ConsulClient(InProcessTransport(door), clock=self.clock)  # type: ignore[arg-type]

    def ask(self, prepared: Callable[[], Awaitable[Mutation]]) -> Mutation | None:
        """What a person asks for; None where it is refused."""

        async def asked() -> Mutation | None:
            try:
                mutation = await prepared()
                await commit(self.call, mutation)
            except StoreError:
                return None
            return mutation

        return self.run(asked())

    def add_node(self, name: str, labels: dict[str, str], cpu: float) -> None:
        async def added() -> None:
            agent = self.agents[name] = SimulatedAgent(
                name, self.client_of(f"agent/{name}"), KEYS, self.clock
            )
            await agent.register()
            record = {"labels": labels, "capacity": {"cpu": cpu}, "x-rack": name}
            await self.hand.put(KEYS.node(name), msgspec.json.encode(record))
            await agent.start()

        self.run(added())

    def read(self, key: str) -> Entry | None:
        pair = self.server.state.kv.get(key)
        return None if pair is None else _entry(pair)

    def under(self, prefix: str) -> dict[str, Entry]:
        return {pair.key: _entry(pair) for pair in self.server.state.kv.under(prefix)}

    def put(self, key: str, value: bytes) -> None:
        """Write by hand, whatever stands there."""
        self.run(self.hand.put(key, value))

    def delete(self, key: str) -> None:
        self.run(self.hand.delete(key))

    def lock(self, key: str) -> None:
        """Hold a lock that is free, by a session that lasts."""

        async def locked() -> None:
            session = await self.hand.create_session(name="hand", ttl=86400.0)
            value = Holder("user", "bob", f"nonce@{self.clock.now():.0f}").value()
            await self.hand.put(key, value, acquire=session)

        self.run(locked())

    def corrupt(self, key: str, value: bytes) -> None:
        """Overwrite a record with what nobody can read; ``mend`` brings it back."""
        entry = self.read(key)
        if entry is not None and key not in self.corrupted:
            self.put(key, value)
            written = self.read(key)
            assert written is not None
            self.corrupted[key] = written.modify_index, entry

    def mend(self, key: str) -> None:
        """Bring a record back that is still as corrupt as it was left."""
        index, before = self.corrupted.pop(key)
        now = self.read(key)
        if now is not None and now.modify_index == index:
            self.put(key, before.value)

    # -- what must hold at every moment --------------------------------------------------------
    @property
    def sight(self) -> Sight:
        """The store as it is now; what was corrupted by hand is seen as it was before."""
        entries = self.under(KEYS.prefix)
        for key, (index, before) in self.corrupted.items():
            if key in entries and entries[key].modify_index == index:
                entries[key] = msgspec.structs.replace(entries[key], value=before.value)
        return Sight(KEYS, entries, frozenset(self.witness.tampered))

    def check(self, *, replay: bool = True) -> None:
        """Raises AssertionError with everything that is wrong now, and how it came to that.

        Without ``replay`` where pods were written by hand: the audit knows nothing of those.
        """
        found = [*self.failures, *self.loop.crashes, *self.witness.violations]
        found += [f"the agent of {n} failed: {a.failure!r}" for n, a in self.agents.items() if a.failure]
        sight = self.sight
        found += sight.violations()
        found += self._believers()
        found += self._replayed() if replay else []
        if found:
            raise AssertionError("\n".join([*found[:20], "--- the last commits", *self.witness.story]))

    def _believers(self) -> list[str]:
        """No two live farms work on one item and believe that they may (R2, R12)."""
        believers: dict[tuple[str, str], list[str]] = {}
        for name, process in self.farms.items():
            if process.farm is None or process.frozen:
                continue
            for loop in process.farm.loops:
                session = loop.session
                for item, claim in loop.supervisor.owned.items():
                    if claim.session == session.id and session.valid() and session.id not in self.evicted:
                        believers.setdefault((loop.kind.name, item), []).append(name)
        return [f"{item} is worked on by {names}" for item, names in believers.items() if len(names) > 1]

    def _replayed(self) -> list[str]:
        """The audit from the newest checkpoint on says exactly which pods there are (R25)."""
        while True:
            before = self.witness.commits
            said = self.run(checkpoint.replayed(self.client, KEYS)).pods
            if self.witness.commits == before:  # else it may or may not know what was written meanwhile
                break
        wrong = {(p.owner, p.node, p.instance) for p in said} ^ self.sight.pods.keys()
        return [f"the audit and the pods disagree about {sorted(wrong)}"] if wrong else []

    # -- what must come true -------------------------------------------------------------------
    def converge(self, within: float = 1500.0) -> None:
        """Let time pass until everything is as asked for; raises AssertionError if it never is."""
        deadline, found = self.clock.mono() + within, ["nothing was looked at"]
        while self.clock.mono() < deadline:
            self.advance(5.0)
            self.check()
            found = self.undone()
            if not found:
                return
        told = [f"{key}: {self._text(key)}" for key in sorted(self.under(KEYS.tree("status")))]
        text = ["did not converge", *found, *told, "--- the last commits", *self.witness.story]
        raise AssertionError("\n".join([*text, "--- logged", *self.logged[-20:]]))

    def undone(self) -> list[str]:
        """What is not yet as it was asked for."""
        return [*unfinished(self.sight, self.clock.now()), *self.unowned()]

    def _text(self, key: str) -> str:
        entry = self.read(key)
        return "" if entry is None else entry.value.decode(errors="replace")

    def unowned(self) -> list[str]:
        """Every item has one lock, and the farm that holds it a worker and a selector that fits."""
        lines = []
        owned: dict[tuple[str, str], list[str]] = {}
        for name, process in self.farms.items():
            for loop in process.farm.loops if process.farm is not None else []:
                for item in loop.supervisor.owned:
                    owned.setdefault((loop.kind.name, item), []).append(name)
        for kind, item, labels in self.sight.items():
            names = owned.get((kind, item), [])
            if len(names) != 1:
                lines.append(f"{kind}/{item} has the workers {names}")
            foreign = [name for name in names if kind != "nodes" and not self._shares(name, labels)]
            if foreign:
                lines.append(f"{kind}/{item} with {labels} is not for {foreign}")
        return lines

    def _shares(self, farm: str, labels: dict[str, str]) -> bool:
        return parse(self.farms[farm].selector).matches(labels)

    def tidy(self, within: float = 600.0) -> None:
        """Let time pass until no manifest is left that nothing refers to."""
        deadline, found = self.clock.mono() + within, ["nothing was looked at"]
        while self.clock.mono() < deadline and found:
            self.advance(30.0)
            found = unreferenced(self.sight)
        self.check()
        if found:
            raise AssertionError("\n".join(["was not tidied up", *found, *self.witness.story]))


def _entry(pair: Any) -> Entry:
    return Entry(
        pair.key,
        pair.value or b"",
        pair.modify_index,
        pair.create_index,
        pair.lock_index,
        pair.flags,
        pair.session,
    )
