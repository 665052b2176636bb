"""What goes wrong during a soak: each fault begins, lasts, and ends by itself, everything healed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from store import operations
from store.errors import StoreError
from store.keys import is_sentinel
from tests.fleet import long_log
from tests.frozen_disk import FrozenDisk
from tests.proxy import transactions
from tests.servers import ConsulServer
from tests.soak.fleet import Fleet
from tests.soak.operations import People
from tests.soak.part import Part

# The log that a server replays after a restart; it is written once for all restarts.
LOG_TRANSACTIONS = 1500
# A server that was divided from the others hears of the new leader within this time, and then its clients do.
REJOIN_SECONDS = 15.0


class Faults:
    """Begins faults at random; those of the whole store come one at a time.

    ``restored`` is called when the store goes back to a snapshot: what was seen before tells nothing then.
    """

    def __init__(
        self,
        fleet: Fleet,
        people: People,
        rng: random.Random,
        counts: Counter[str],
        restored: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._people = people
        self._rng = rng
        self._counts = counts
        self._restored = restored
        self._store = asyncio.Lock()
        self._disks = {node: asyncio.Lock() for node in fleet.agents}
        self._choices: dict[Callable[[], Awaitable[None]], int] = {
            self.kill_farm: 3,
            self.stop_farm: 1,
            self.pause_farm: 3,
            self.kill_agent: 4,
            self.pause_agent: 3,
            self.cut: 3,
            self.delay: 2,
            self.freeze: 2,
            self.lose_answer: 3,
            self.refuse: 2,
            self.leaderless: 2,
            self.repeat_writes: 2,
            self.full_disk: 3,
            self.read_only_disk: 2,
            self.removed_state: 2,
            self.damaged_presence: 2,
            self.damaged_reality: 3,
            self.consul_restart: 1,
            self.consul_kill: 1,
            self.consul_pause: 1,
            self.restore: 2,
        }
        if any(isinstance(disk, FrozenDisk) for disk in fleet.disks.values()):
            self._choices |= {self.frozen_disk: 3}
        if len(fleet.consul.servers) > 1:
            self._choices |= {self.consul_divided: 2, self.consul_without_quorum: 1}

    def heal(self) -> None:
        """Start what has ended, and let all connections pass: what faults that overlapped left behind."""
        for part in self._fleet.parts:
            part.proxy.accept()
            part.proxy.thaw()
            part.proxy.recover()
            part.proxy.latency = 0.0
            part.resume()
            part.start()

    async def one(self) -> None:
        """One fault, from its beginning to its end."""
        (chosen,) = self._rng.choices(list(self._choices), list(self._choices.values()))
        self._counts[chosen.__name__] += 1
        with contextlib.suppress(StoreError):  # another fault keeps the store from this one
            await chosen()

    # -- processes -----------------------------------------------------------------------------
    async def kill_farm(self) -> None:
        await self._ended(self._mortal(self._fleet.farms), signal.SIGKILL, 25)

    async def stop_farm(self) -> None:
        await self._ended(self._mortal(self._fleet.farms), signal.SIGTERM, 10)

    async def pause_farm(self) -> None:
        await self._paused(self._farm())

    async def kill_agent(self) -> None:
        """It comes back within the grace period, or after its node was given up."""
        await self._ended(self._mortal(self._fleet.agents), signal.SIGKILL, 60)

    async def pause_agent(self) -> None:
        await self._paused(self._agent())

    async def _ended(self, part: Part, number: int, longest: float) -> None:
        with part.trouble():
            await part.end(number)
            await self._last(0, longest)
            part.start()

    async def _paused(self, part: Part) -> None:
        with part.trouble():
            part.pause()
            await self._last(3, 40)
            part.resume()

    # -- connections ---------------------------------------------------------------------------
    async def cut(self) -> None:
        """All connections are cut once, or for a while."""
        part = self._part()
        with part.trouble():
            part.proxy.refuse()
            await self._last(0, 30)
            part.proxy.accept()

    async def delay(self) -> None:
        part = self._part()
        with part.trouble():
            part.proxy.latency = self._rng.uniform(0.1, 1.5)
            await self._last(5, 20)
            part.proxy.latency = 0.0

    async def freeze(self) -> None:
        """Nothing passes either way, and no connection ends."""
        part = self._part()
        with part.trouble():
            part.proxy.freeze()
            await self._last(3, 30)
            part.proxy.thaw()

    async def lose_answer(self) -> None:
        """A transaction is carried out and its answer is lost."""
        part = self._part()
        hold = part.proxy.hold_transaction(self._rng.randint(1, 5), answer=True)
        with part.trouble():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hold.reached.wait(), 20)
                await self._last(0, 3)
            hold.countdown = 0  # what has not come by now passes
            hold.drop()

    async def refuse(self) -> None:
        """Consul answers 429 or 500 to everything, or to writes alone."""
        part = self._part()
        writes = self._rng.random() < 0.5
        with part.trouble():
            status = self._rng.choice((429, 500))
            part.proxy.fail(status, lambda seen: seen.method == "PUT" or not writes)
            await self._last(2, 15)
            part.proxy.recover()

    async def leaderless(self) -> None:
        """One farm asks an agent of Consul that knows no leader, while all others know it."""
        part = self._farm()
        with part.trouble():
            part.proxy.fail(500, body="No cluster leader")
            await self._last(5, 15)
            part.proxy.recover()

    async def repeat_writes(self) -> None:
        """Something between sends each transaction twice; its sender hears how the second one went."""
        part = self._part()
        with part.trouble():
            part.proxy.repeat(transactions)
            await self._last(5, 20)
            part.proxy.recover()

    # -- disks ---------------------------------------------------------------------------------
    async def full_disk(self) -> None:
        """The state folder has no room; half of the time the agent is killed meanwhile."""
        part = self._agent()
        disk = self._fleet.disks[part.name]
        async with self._disks[part.name]:
            with part.trouble():
                disk.fill()
                await self._killed_meanwhile(part)
                disk.free()

    async def read_only_disk(self) -> None:
        part = self._agent()
        disk = self._fleet.disks[part.name]
        async with self._disks[part.name]:
            with part.trouble():
                await asyncio.to_thread(disk.read_only)
                await self._killed_meanwhile(part)
                await asyncio.to_thread(disk.writable)

    async def frozen_disk(self) -> None:
        """Whatever changes the state folder waits in the kernel; its node stays, and is closed meanwhile."""
        part = self._agent()
        disk = self._fleet.disks[part.name]
        assert isinstance(disk, FrozenDisk)
        async with self._disks[part.name]:
            with part.trouble():
                try:
                    await asyncio.to_thread(disk.freeze)
                    await self._last(2, 25)
                finally:
                    await asyncio.to_thread(disk.thaw)

    async def removed_state(self) -> None:
        part = self._agent()
        async with self._disks[part.name]:
            with part.trouble():
                await asyncio.to_thread(shutil.rmtree, self._fleet.state(part.name), ignore_errors=True)
                # Nothing tells their manifests any more: an agent that begins now replaces them (R26).
                orphans = [each for each in self._fleet.workloads() if each.place[0] == part.name]
                self._people.killed |= {(each.pid, each.ticks) for each in orphans}
                await self._last(5, 20)

    async def _killed_meanwhile(self, part: Part) -> None:
        await self._last(2, 10)
        if self._rng.random() < 0.5 and part not in self._fleet.lasting:
            await part.end()
            part.start()
        await self._last(2, 10)

    # -- records -------------------------------------------------------------------------------
    async def damaged_presence(self) -> None:
        """Somebody removes or spoils what a farm or an agent says of itself; it notices within a minute."""
        part, keys = self._part(), self._fleet.keys
        key = keys.farm(part.name) if part.name in self._fleet.farms else keys.agent(part.name)
        with part.trouble():
            await self._damage(key)
            await self._last(10, 30)

    async def damaged_reality(self) -> None:
        """Somebody removes or spoils what an agent says of a pod: this is doubt and moves no pod (R22)."""
        dump = await self._fleet.dump()
        prefix = self._fleet.keys.tree("reality")
        found = sorted(key for key in dump.entries if key.startswith(prefix) and not is_sentinel(key))
        if found:
            await self._damage(self._rng.choice(found))

    async def _damage(self, key: str) -> None:
        damage = operations.delete(key) if self._rng.random() < 0.5 else operations.put(key, b"{garbage")
        await self._fleet.client.transaction([damage])

    # -- the store -----------------------------------------------------------------------------
    async def consul_restart(self) -> None:
        await self._consul(self._fleet.consul.stop)

    async def consul_kill(self) -> None:
        await self._consul(self._fleet.consul.kill)

    async def _consul(self, end: Callable[[ConsulServer], None]) -> None:
        """Half of the time thousands of entries of the log are replayed after those of the sessions."""
        async with self._store:
            if self._rng.random() < 0.5:
                await long_log(self._fleet.client, LOG_TRANSACTIONS)
            with self._fleet.trouble():
                server = await self._server()
                await asyncio.to_thread(end, server)
                await self._last(0, 8)
                await asyncio.to_thread(self._fleet.consul.start, server)
                await self._rejoined()

    async def consul_pause(self) -> None:
        """The server answers nothing, and its connections stay open."""
        async with self._store:
            with self._fleet.trouble():
                server = await self._server()
                self._fleet.consul.pause(server)
                await self._last(2, 20)
                self._fleet.consul.resume(server)
                await self._rejoined()

    async def consul_divided(self) -> None:
        """One server hears no other one; who asks it still reaches it."""
        async with self._store:
            with self._fleet.trouble():
                with self._fleet.consul.isolated(await self._server()):
                    await self._last(2, 20)
                await self._rejoined()

    async def consul_without_quorum(self) -> None:
        """All servers but one answer nothing."""
        async with self._store:
            with self._fleet.trouble():
                _, *stopped = self._rng.sample(self._fleet.consul.servers, len(self._fleet.consul.servers))
                for server in stopped:
                    self._fleet.consul.pause(server)
                await self._last(2, 20)
                for server in stopped:
                    self._fleet.consul.resume(server)
                await self._rejoined()

    async def restore(self) -> None:
        """The store goes back; half of the time somebody edits at once, now and then it goes back twice."""
        async with self._store:
            with self._fleet.trouble():
                server = self._fleet.consul.up[0]
                snapshot = await asyncio.to_thread(server.snapshot)
                await self._last(3, 20)
                for _ in range(self._rng.choice((1, 1, 2))):
                    self._restored()
                    await asyncio.to_thread(server.restore, snapshot)
                    self._restored()
                if self._rng.random() < 0.5:
                    await self._people.act()

    # -- parts of these ------------------------------------------------------------------------
    async def _last(self, least: float, most: float) -> None:
        await asyncio.sleep(self._rng.uniform(least, most))

    async def _server(self) -> ConsulServer:
        """The leader half of the time, else any."""
        leader = await asyncio.to_thread(lambda: self._fleet.consul.leader)
        return (
            leader or self._fleet.consul.up[0]
            if self._rng.random() < 0.5
            else self._rng.choice(self._fleet.consul.up)
        )

    async def _rejoined(self) -> None:
        """Where there are several servers, those who ask the one that was away need time for new sessions."""
        if len(self._fleet.consul.servers) > 1:
            await asyncio.sleep(REJOIN_SECONDS)

    def _farm(self) -> Part:
        return self._fleet.farms[self._rng.choice(sorted(self._fleet.farms))]

    def _mortal(self, parts: Mapping[str, Part]) -> Part:
        """One that may be ended; the others show by their memory whether anything leaks."""
        chosen = [part for name, part in sorted(parts.items()) if part not in self._fleet.lasting]
        return self._rng.choice(chosen)

    def _agent(self) -> Part:
        return self._fleet.agents[self._rng.choice(sorted(self._fleet.agents))]

    def _part(self) -> Part:
        return self._rng.choice(self._fleet.parts)
