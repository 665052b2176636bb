"""What goes wrong with nodes, farms, the network, Consul and clumsy hands: rules for ``test_fleet``."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from store import codec
from store.keys import is_sentinel
from store.reality import Intent
from tests.stateful.fleet import FARMS, KEYS
from tests.stateful.lines import FAULTS
from tests.stateful.people import People, which

GARBAGE = (b"{", b"", b"[1]", b'{"labels": 1, "manifest": 2, "evidence": 3}', b"\xff\xfe")
SENTINELS = (
    "rcs",
    "pods",
    "intent",
    "nodes",
    "agents",
    "locks",
    "reality",
    "work",
    "farms",
    "reserved",
    "daemonsets",
    "rollouts",
)
CORRUPTIBLE = (
    "rcs",
    "rcs",
    "rollouts",
    "rollouts",
    "daemonsets",
    "nodes",
    "pods",
    "status",
    "reality",
    "failsafe",
    "agents",
)
INSTANCES = ("web", "db", "web~0", "web~1", "db~0", "log", "mesh")

farms = st.sampled_from(FARMS)


class Troubles(People):
    """Faults; each can be undone by one of the same rules, and all are in the end."""

    missing: dict[str, bytes]
    leapt: bool

    def line(self, name: str) -> Any:
        process = self.fleet.farms[name]
        return process.line if process.alive else None

    # -- agents --------------------------------------------------------------------------------
    @rule(number=which, at_once=st.booleans())
    def agent_dies(self, number: int, at_once: bool) -> None:
        agent = self.fleet.agents[self.one(self.fleet.agents, number)]
        self.fleet.run(agent.die(at_once=at_once))

    @rule(number=which)
    def agent_returns(self, number: int) -> None:
        agent = self.fleet.agents[self.one(self.fleet.agents, number)]
        self.fleet.run(agent.start())

    @rule(number=which, delay=st.sampled_from([0.2, 4.0, 20.0]))
    def agent_slow(self, number: int, delay: float) -> None:
        self.fleet.agents[self.one(self.fleet.agents, number)].delay = delay

    @rule(number=which, instance=st.sampled_from(INSTANCES), sick=st.booleans())
    def pod_health(self, number: int, instance: str, sick: bool) -> None:
        self.fleet.agents[self.one(self.fleet.agents, number)].ail(instance, sick)

    # -- farms ---------------------------------------------------------------------------------
    @rule(name=farms)
    def start_farm(self, name: str) -> None:
        self.fleet.run(self.fleet.farms[name].start())

    @rule(name=farms)
    def kill_farm(self, name: str) -> None:
        self.fleet.run(self.fleet.farms[name].kill())

    @rule(name=farms)
    def stop_farm(self, name: str) -> None:
        """A clean stop leaves nothing behind, unless the farm cannot say goodbye."""
        process = self.fleet.farms[name]
        if not process.alive:
            return
        well, healthy = process.ready, not process.line.troubled
        self.fleet.run(process.stop())
        if well and healthy:
            held = [
                key
                for key, e in self.fleet.under(KEYS.tree("locks")).items()
                if f"/{name}/".encode() in e.value
            ]
            assert not held, f"{name} stopped and left {held}"

    @rule(name=farms, frozen=st.booleans())
    def freeze_farm(self, name: str, frozen: bool) -> None:
        process = self.fleet.farms[name]
        if process.alive:
            process.line.faulted_at = self.fleet.clock.mono()
            (process.freeze if frozen else process.thaw)()

    @rule(name=farms, cut=st.booleans())
    def cut_line(self, name: str, cut: bool) -> None:
        if line := self.line(name):
            line.cut(cut)

    @rule(name=farms, delay=st.sampled_from([0.0, 0.3, 2.0]))
    def slow_line(self, name: str, delay: float) -> None:
        if line := self.line(name):
            line.delay = delay
            line.faulted_at = self.fleet.clock.mono()

    @rule(name=farms, how=st.sampled_from(["", "refused", "silent"]))
    def blind_line(self, name: str, how: Any) -> None:
        """Watches fail, while everything else goes well."""
        if line := self.line(name):
            line.blind(how)

    @rule(name=farms, fault=st.sampled_from(FAULTS), after=st.integers(0, 3), times=st.integers(1, 2))
    def spoil(self, name: str, fault: Any, after: int, times: int) -> None:
        if line := self.line(name):
            for _ in range(times):
                line.spoil(after, fault)

    @rule(name=farms)
    def session_destroyed(self, name: str) -> None:
        """Somebody ends a farm's session under it."""
        entry = self.fleet.read(KEYS.farm(name))
        if entry is not None and entry.session:
            self.fleet.evicted.add(entry.session)
            self.fleet.run(self.fleet.hand.destroy_session(entry.session))

    # -- Consul and clumsy hands ---------------------------------------------------------------
    @rule(without=st.booleans())
    def leader(self, without: bool) -> None:
        for name in FARMS:
            if line := self.line(name):
                line.leaderless(without)

    @rule(number=which, how=st.sampled_from(["delete", "steal", "garbage", "retarget"]))
    def intent_by_hand(self, number: int, how: str) -> None:
        place = self.one(list(self.fleet.sight.intents), number)
        if place is None:
            return
        key = KEYS.intent(*place)
        self.fleet.witness.tampered.add(place)
        if how == "delete":
            self.fleet.delete(key)
        elif how == "garbage":
            self.fleet.put(key, b"{")
        elif how == "steal":
            self.fleet.put(key, codec.encode(Intent(manifest="0" * 64, owner="f" * 16)))
        elif (intent := self.fleet.sight.intents[place]) is not None:
            self.fleet.put(key, codec.encode(Intent(manifest="1" * 64, owner=intent.owner)))

    @rule(family=st.sampled_from(CORRUPTIBLE), number=which, value=st.sampled_from(GARBAGE))
    def corrupt(self, family: str, number: int, value: bytes) -> None:
        keys = [key for key in self.fleet.under(KEYS.tree(family)) if not is_sentinel(key)]
        if key := self.one(keys, number):
            self.fleet.corrupt(key, value)

    @rule(number=which)
    def mend(self, number: int) -> None:
        if key := self.one(self.fleet.corrupted, number):
            self.fleet.mend(key)

    @rule(family=st.sampled_from(SENTINELS))
    def lose_sentinel(self, family: str) -> None:
        key = KEYS.sentinel(KEYS.tree(family))
        entry = self.fleet.read(key)
        if entry is not None:
            self.missing[key] = entry.value
            self.fleet.delete(key)

    @rule()
    def restore_sentinels(self) -> None:
        for key, value in self.missing.items():
            self.fleet.put(key, value)
        self.missing = {}

    @rule()
    def an_hour_passes(self) -> None:
        """On the wall, once: the audit log is pruned while everything else goes on."""
        if not self.leapt:
            self.leapt = True
            self.fleet.leap(3600.0)
