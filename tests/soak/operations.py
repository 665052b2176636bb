"""What people ask of the fleet during a soak, the way the command line asks it.

A request that Consul or a rule refuses is counted as refused; everything else that goes wrong is a fault of
the product.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from farmd.apps import commands
from farmd.commands.mutation import Mutation, commit
from farmd.daemonset.commands import DAEMON_SET
from farmd.replication.commands import RC, set_replicas
from store import codec
from store.errors import StoreError
from store.manifests import Manifest
from tests.fault.invariants import Dump
from tests.soak import apps, jobs, schedules, spreads, words
from tests.soak.fleet import Fleet
from tests.soak.machines import Machines
from tests.soak.rollouts import live

CONTROLLERS = ("web", "api", "db", "job", "mail")
# A controller of many pods, several on each node, which is there all the time and is rolled again and again.
MANY, MANY_PODS = "many", 50
DAEMON_SETS = ("logs", "mesh")
SELECTORS = ("", "zone=a", "zone in (a,b)")
MIN_HEALTHY_TIME = 3.0
STOP_AFTER = 20.0
# A pod that ends by itself is a start that was bad; all others run on until somebody ends them.
LASTING, MORTAL = "7200", "2"


class People:
    """Somebody who asks for something at random; ``counts`` tells what was done.

    ``killed`` are the workloads that were killed, as (process id, ticks).
    """

    def __init__(self, fleet: Fleet, rng: random.Random, counts: Counter[str]) -> None:
        self._fleet = fleet
        self._rng = rng
        self._counts = counts
        self._version = 0
        self.killed: set[tuple[int, int]] = set()
        self._machines = Machines(fleet, rng, self.killed)
        self._choices: dict[Callable[[Dump], Awaitable[bool]], int] = {
            self.create: 4,
            self.scale: 5,
            self.update: 5,
            self.disable: 2,
            self.delete: 2,
            self._machines.cordon: 2,
            self._machines.drain: 2,
            self._machines.label: 3,
            self._machines.taint: 2,
            self._machines.kill_pod: 2,
            self.roll: 6,
            self.say: 6,
            self.supersede: 3,
            self.serve: 3,
            self.job: 5,
            self.schedule: 5,
            self.spread: 4,
            self.app: 6,
            self.swap: 2,
        }

    async def act(self) -> None:
        """Ask for one thing."""
        (chosen,) = self._rng.choices(list(self._choices), list(self._choices.values()))
        name = chosen.__name__
        try:
            done = await chosen(await self._fleet.dump())
        except StoreError as error:
            self._counts[f"{name} refused: {error.code}"] += 1
        else:
            self._counts[name if done else f"{name}: nothing to do"] += 1

    async def tidy(self) -> None:
        """Take back what keeps the fleet from being whole: drains, cordons, taints, disabled and bad pods."""
        dump, fleet = await self._fleet.dump(), self._fleet
        await self._machines.tidy(dump)
        for noun, records in ((RC, dump.rcs), (DAEMON_SET, dump.daemonsets)):
            for record in records.values():
                if record.deleting:
                    continue
                if record.disabled:
                    await self._commit(noun.enable(fleet.call, record.name))  # type: ignore[attr-defined]
                if not (record.managed_by or record.part_of) and self._bad(dump, record):
                    await self._replace(noun, record, dump, LASTING)
        for rc in dump.rcs.values():
            if rc.name not in (*CONTROLLERS, MANY) and not (rc.managed_by or rc.part_of):
                await self._commit(RC.delete(fleet.call, rc.name, cascade=True))
        for mutation in (*await jobs.gone(fleet.call, dump), *await apps.gone(fleet.call, dump)):
            await commit(fleet.call, mutation)
        await words.tend(fleet)

    # -- rollouts ------------------------------------------------------------------------------
    async def begin(self) -> None:
        """Create the controller of many pods."""
        file = {
            "name": MANY,
            "replicas": MANY_PODS,
            "replicas_per_node": -(-MANY_PODS // len(self._fleet.agents)),
            "max_unavailable": MANY_PODS // 5,
            "min_healthy_time": MIN_HEALTHY_TIME,
            "pod": self._pod(MANY, LASTING),
        }
        await self._commit(RC.create(self._fleet.call, RC.file.parse(file, "soak")))
        await self._commit(words.served(self._fleet.call, MANY, await self._fleet.dump()))
        for name in DAEMON_SETS:
            await self._daemon_set(name)

    async def roll(self, dump: Dump) -> bool:
        """Begin a rollout from a good version to another one, which now and then is a bad one."""
        free = {
            name: rc
            for name, rc in dump.rcs.items()
            if rc.name in (*CONTROLLERS, MANY)
            and rc.replicas_desired
            and not (rc.managed_by or rc.deleting or self._bad(dump, rc))
        }
        if not free:
            return False
        many = [rc for rc in free.values() if rc.name == MANY]
        rc = many[0] if many and self._rng.random() < 0.6 else self._one(free)
        policy = words.policy(rc, dump, self._fleet.smoke.address, self._rng)
        seconds = self._rng.choice((LASTING, LASTING, LASTING, MORTAL))
        await self._replace(RC, rc, dump, seconds, now=False, retry=True, rollout=policy)
        return True

    async def say(self, dump: Dump) -> bool:
        """A word about a rollout that is under way."""
        owners = dump.owners
        found = {each.id: each for each in live(dump).values() if each.old in owners}
        if not found:
            return False
        rollout = self._one(found)
        many = rollout.name == MANY
        most = MANY_PODS if many else self._most(owners[rollout.old].node_selector)
        await self._commit(words.said(self._fleet.call, rollout, most, self._rng, self._counts))
        return True

    async def spread(self, dump: Dump) -> bool:
        """Begin a rollout of a daemon set over nodes, to a version that is now and then a bad one."""
        free = {
            ident: each
            for ident, each in dump.daemonsets.items()
            if not (each.managed_by or each.deleting or each.disabled or self._bad(dump, each))
        }
        if not free:
            return False
        fields = spreads.file(self._fleet.smoke.address, self._rng)
        seconds = self._rng.choice((LASTING, LASTING, LASTING, MORTAL))
        await self._replace(DAEMON_SET, self._one(free), dump, seconds, now=False, retry=True, **fields)
        return True

    async def supersede(self, dump: Dump) -> bool:
        """Put another version in place of one that is coming."""
        owners = dump.owners
        found = {each.old: owners[each.old] for each in live(dump).values() if each.old in owners}
        if not found:
            return False
        record = self._one(found)
        noun = RC if record.id in dump.rcs else DAEMON_SET
        seconds = self._rng.choice((LASTING, LASTING, MORTAL))
        await self._replace(noun, record, dump, seconds, now=False, retry=True, supersede=True)
        return True

    async def serve(self, dump: Dump) -> bool:
        """A service of a controller comes or goes; that of the many stays."""
        names = sorted(rc.name for rc in dump.rcs.values() if rc.name in CONTROLLERS)
        if names:
            await self._commit(words.served(self._fleet.call, self._rng.choice(names), dump))
        return bool(names)

    async def job(self, dump: Dump) -> bool:
        """Something of a job; its members end by themselves."""
        pod = self._pod("member", str(self._rng.randint(1, 6)))
        del pod["restart"]
        await self._commit(jobs.asked(self._fleet.call, dump, pod, self._rng))
        return True

    async def schedule(self, dump: Dump) -> bool:
        """Something of a schedule; the members of its jobs end by themselves, some after their next time."""
        pod = self._pod("member", str(self._rng.randint(1, 9)))
        del pod["restart"]
        await self._commit(schedules.asked(self._fleet.call, dump, pod, self._rng))
        return True

    async def app(self, dump: Dump) -> bool:
        """Something of an app; its pods run on."""
        asked = apps.asked(self._fleet.call, dump, lambda name: self._pod(name, LASTING), self._rng)
        await self._commit(asked)
        return True

    async def swap(self, dump: Dump) -> bool:
        """Each of two apps wants what the other one has."""
        for bundle in apps.swapped(dump, lambda name: self._pod(name, LASTING), self._rng):
            application = await commands.apply(self._fleet.call, bundle, adopt=("all",), mass=True)
            application.refuse()
            await commit(self._fleet.call, application.mutation)
        return True

    # -- owners of pods ------------------------------------------------------------------------
    async def create(self, dump: Dump) -> bool:
        taken = {record.name for record in dump.owners.values()}
        free = sorted({*CONTROLLERS, *DAEMON_SETS} - taken)
        if not free:
            return False
        name = self._rng.choice(sorted(set(free) & set(DAEMON_SETS)) or free)
        if name in DAEMON_SETS:
            await self._daemon_set(name)
            return True
        pod = self._pod(name, LASTING)
        selector = self._rng.choice(SELECTORS)
        file = {
            "name": name,
            "node_selector": selector,
            "replicas": self._rng.randint(1, self._most(selector)),
            "strategy": self._rng.choice(("static", "dynamic")),
            "max_unavailable": self._rng.choice((1, 1, 2)),
            "min_healthy_time": MIN_HEALTHY_TIME,
            "unhealthy_after": 20,
            "transfer_timeout": 20,
            "pod": pod,
        }
        await self._commit(RC.create(self._fleet.call, RC.file.parse(file, "soak")))
        return True

    async def _daemon_set(self, name: str) -> None:
        file: dict[str, Any] = {
            "name": name,
            "node_selector": self._rng.choice(SELECTORS),
            "min_healthy_time": MIN_HEALTHY_TIME,
            "pod": self._pod(name, LASTING),
        }
        file |= self._rng.choice(({}, {"min_health": "50%"}))
        await self._commit(DAEMON_SET.create(self._fleet.call, DAEMON_SET.file.parse(file, "soak")))

    async def scale(self, dump: Dump) -> bool:
        rcs = {rc.id: rc for rc in dump.rcs.values() if rc.name != MANY}
        if not rcs:
            return False
        rc = self._one(rcs)
        count = self._rng.randint(0, self._most(rc.node_selector))
        await self._commit(set_replicas(self._fleet.call, rc.name, count))
        return True

    async def update(self, dump: Dump) -> bool:
        """Another manifest, which now and then is a bad one."""
        if (record := self._owner(dump)) is None:
            return False
        noun = RC if record.id in dump.rcs else DAEMON_SET
        await self._replace(noun, record, dump, self._rng.choice((LASTING, LASTING, LASTING, MORTAL)))
        return True

    async def disable(self, dump: Dump) -> bool:
        if (record := self._owner(dump)) is None:
            return False
        noun: Any = RC if record.id in dump.rcs else DAEMON_SET
        command = noun.enable if record.disabled else noun.disable
        await self._commit(command(self._fleet.call, record.name))
        return True

    async def delete(self, dump: Dump) -> bool:
        if (record := self._owner(dump)) is None:
            return False
        noun: Any = RC if record.id in dump.rcs else DAEMON_SET
        await self._commit(noun.delete(self._fleet.call, record.name, cascade=True))
        return True

    # -- parts of these ------------------------------------------------------------------------
    async def _commit(self, prepared: Awaitable[Mutation]) -> None:
        await commit(self._fleet.call, await prepared)

    async def _replace(
        self, noun: Any, record: Any, dump: Dump, seconds: str, *, now: bool = True, **fields: Any
    ) -> None:
        asked = {word: True for word in ("retry", "supersede") if fields.pop(word, False)}
        file = noun.file.as_file(record, self._manifest(dump, record.manifest)) | fields
        file["pod"] |= self._pod(record.pod_id, seconds)
        file.pop("disabled", None)  # stays as it is
        spec = noun.file.parse(file, "soak")
        await self._commit(noun.update(self._fleet.call, spec, now=now, **asked))

    def _pod(self, name: str, seconds: str) -> dict[str, Any]:
        self._version += 1
        pod: dict[str, Any] = {
            "id": name,
            "command": ["sleep", seconds],
            "env": {"SOAK_VERSION": str(self._version)},
            "ports": {words.PORT: {"port": 0}},
            "resources": {"cpu": 0.01},
            "restart": {"initial": 0.5, "maximum": 2.0},
        }
        if name == CONTROLLERS[-1]:
            pod["stop_after"] = STOP_AFTER
            pod["env"]["SOAK_STOP_AFTER"] = str(STOP_AFTER)
        if name in CONTROLLERS[:2]:
            pod["health"] = {"type": "command", "command": ["test", "-d", "/"], "interval": 2.0}
        return pod

    def _bad(self, dump: Dump, record: Any) -> bool:
        return bool(self._manifest(dump, record.manifest).command[1] == MORTAL)

    def _manifest(self, dump: Dump, sha: str) -> Any:
        entry = dump.entries[dump.keys.manifest(sha)]
        return codec.decode(Manifest, entry.value, entry.key)

    def _owner(self, dump: Dump) -> Any:
        """One of those that people change at will; None: there is none."""
        owners = {each.id: each for each in dump.owners.values() if each.name != MANY}
        return self._one(owners) if owners else None

    def _one(self, records: dict[str, Any]) -> Any:
        return records[self._rng.choice(sorted(records))]

    def _most(self, selector: str) -> int:
        """As many pods as there is room for when all nodes are well."""
        zones = {"": "abc", "zone=a": "a", "zone in (a,b)": "ab"}[selector]
        return sum(zone in zones for zone in self._fleet.zones.values())
