"""A whole fleet against anything that people, nodes, the network and Consul may do to it, step by step.

Hypothesis chooses what happens; after every step the world must be as the protocol promises, and once the
faults stop it must become what was asked for. The same seeds try the same in every run (of one
``PYTHONHASHSEED``); ``FARMD_STATEFUL_EXAMPLES`` asks for more, ``FARMD_STATEFUL_SEED`` where to begin.
A failure prints its steps, to be pasted into a test of its own, and the last commits of the store.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from farmd.housekeeping.model import HousekeepingSettings
from farmd.nodes import commands as node_commands
from farmd.replication import commands
from farmd.replication.spec import ControllerSpec, parse
from store import codec
from store.intent import Intent
from store.keys import is_sentinel
from store.rcs import ReplicationController
from tests.people import hello
from tests.stateful.fleet import FARMS, KEYS, Fleet
from tests.stateful.lines import FAULTS

# What passes after one step and the next: now and then something happens in the middle of something else.
PAUSES = (0.004, 1.0, 0.02, 4.0, 0.3, 0.01, 7.0, 0.1)

# Beyond ten examples a run hypothesis tries variations of what it had: more seeds find more.
EXAMPLES_A_SEED = 10
SEEDS = int(os.environ.get("FARMD_STATEFUL_EXAMPLES", "120")) // EXAMPLES_A_SEED
FIRST_SEED = int(os.environ.get("FARMD_STATEFUL_SEED", "1"))
STEPS = 40

NAMES = ("web", "api", "db", "job")
ZONES = ("a", "b")
SELECTORS = ("", "zone=a", "zone in (a,b)", "zone!=b")
MOST_NODES = 7
GARBAGE = (b"{", b"", b"[1]", b'{"labels": 1, "manifest": 2, "evidence": 3}', b"\xff\xfe")
SENTINELS = ("rcs", "pods", "intent", "nodes", "agents", "locks", "reality", "work", "farms", "reserved")

which = st.integers(0, 30)
counts = st.integers(0, 5)
farms = st.sampled_from(FARMS)
pauses = st.sampled_from([0.001, 0.05, 0.3, 1.0, 3.0, 8.0, 15.0, 35.0])


class FleetMachine(RuleBasedStateMachine):
    """What may happen. Every rule draws small numbers that choose among what there is."""

    fleet: Fleet

    # -- the beginning -------------------------------------------------------------------------
    @initialize(nodes=st.integers(2, 5), farm_count=st.integers(1, 3), prunes=st.booleans())
    def begin(self, nodes: int, farm_count: int, prunes: bool) -> None:
        keeping = HousekeepingSettings(
            interval=60.0, manifest_age=60.0, audit_retention=30.0 if prunes else 7 * 24 * 3600.0
        )
        self.fleet = Fleet(keeping)
        self.missing: dict[str, bytes] = {}
        self.versions = 0
        for number in range(nodes):
            self.add_node(ZONES[number % 2], 4.0)
        for name in FARMS[:farm_count]:
            self.start_farm(name)
        self.create("web", 3, "", "web", 1, 1, 0.0, "dynamic", "replace")
        self.create("api", 2, "zone=a", "db", 2, 1, 1.0, "static", "replace")
        self.fleet.advance(2.0)

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        try:
            if not self._failed:
                self.all_is_well_again()
        finally:
            self.fleet.close()

    _failed = False
    steps = 0

    @invariant()
    def as_promised(self) -> None:
        if hasattr(self, "fleet"):
            try:
                self.steps += 1
                self.fleet.advance(PAUSES[self.steps % len(PAUSES)])
                self.fleet.check()
            except BaseException:
                self._failed = True
                raise

    # -- choosing ------------------------------------------------------------------------------
    def rcs(self) -> list[ReplicationController]:
        return sorted(self.fleet.sight.rcs.values(), key=lambda rc: rc.name)

    def one(self, things: Any, number: int) -> Any:
        things = sorted(things)
        return things[number % len(things)] if things else None

    def line(self, name: str) -> Any:
        process = self.fleet.farms[name]
        return process.line if process.alive else None

    # -- people and controllers ----------------------------------------------------------------
    @rule(
        name=st.sampled_from(NAMES),
        replicas=counts,
        selector=st.sampled_from(SELECTORS),
        pod=st.sampled_from(["web", "db"]),
        per_node=st.sampled_from([1, 1, 2]),
        unavailable=st.sampled_from([1, 1, 2]),
        cpu=st.sampled_from([0.0, 0.0, 1.0]),
        strategy=st.sampled_from(["static", "dynamic"]),
        on_lost=st.sampled_from(["replace", "replace", "wait"]),
    )
    def create(
        self,
        name: str,
        replicas: int,
        selector: str,
        pod: str,
        per_node: int,
        unavailable: int,
        cpu: float,
        strategy: str,
        on_lost: str,
    ) -> None:
        spec = self._spec(
            name=name,
            replicas=replicas,
            node_selector=selector,
            pod_id=pod,
            pod_resources={"cpu": cpu} if cpu else {},
            replicas_per_node=per_node,
            max_unavailable=unavailable,
            strategy=strategy,
            on_lost=on_lost,
        )
        made = self.fleet.ask(lambda: commands.create(self.fleet.call, spec))
        if made is not None and made.needed:
            key = KEYS.record("rcs", made.change.id)
            entry = self.fleet.read(key)
            assert entry is not None
            extra = {"x-team": name, "unhealthy_after": 6.0, "transfer_timeout": 12.0}
            self.fleet.put(key, json.dumps(json.loads(entry.value) | extra).encode())

    def _spec(self, **fields: Any) -> ControllerSpec:
        return parse(hello(**fields), "test")

    @rule(number=which, replicas=counts)
    def set_replicas(self, number: int, replicas: int) -> None:
        if rc := self.one([rc.name for rc in self.rcs()], number):
            self.fleet.ask(lambda: commands.set_replicas(self.fleet.call, rc, replicas))

    @rule(number=which, disabled=st.booleans())
    def set_disabled(self, number: int, disabled: bool) -> None:
        if rc := self.one([rc.name for rc in self.rcs()], number):
            command = commands.disable if disabled else commands.enable
            self.fleet.ask(lambda: command(self.fleet.call, rc))

    @rule(number=which, cpu=st.sampled_from([None, None, 0.0, 1.0, 2.0]))
    def update(self, number: int, cpu: float | None) -> None:
        """A new manifest, in place."""
        rcs = self.rcs()
        if not rcs:
            return
        rc = rcs[number % len(rcs)]
        self.versions += 1
        manifest = self.fleet.sight.manifests[rc.manifest]
        resources = manifest.resources if cpu is None else ({"cpu": cpu} if cpu else {})
        spec = self._spec(
            name=rc.name,
            replicas=rc.replicas_desired,
            node_selector=rc.node_selector,
            pod_id=rc.pod_id,
            pod_command=["sleep", str(self.versions)],
            pod_resources=resources,
            replicas_per_node=rc.replicas_per_node,
            max_unavailable=rc.max_unavailable,
            strategy=rc.strategy,
            on_lost=rc.on_lost,
        )
        self.fleet.ask(lambda: commands.update(self.fleet.call, spec, now=True))

    @rule(number=which)
    def delete(self, number: int) -> None:
        """Mark it, or take it away if it was marked and has no pods left."""
        if rc := self.one([rc.name for rc in self.rcs()], number):
            self.fleet.ask(lambda: commands.delete(self.fleet.call, rc, cascade=True))

    # -- nodes ---------------------------------------------------------------------------------
    @precondition(lambda self: len(self.fleet.agents) < MOST_NODES)
    @rule(zone=st.sampled_from(ZONES), cpu=st.sampled_from([1.0, 4.0]))
    def add_node(self, zone: str, cpu: float) -> None:
        self.fleet.add_node(f"n{len(self.fleet.agents)}", {"zone": zone}, cpu)

    @rule(number=which, cordoned=st.booleans())
    def cordon(self, number: int, cordoned: bool) -> None:
        node = self.one(self.fleet.agents, number)
        command = node_commands.cordon if cordoned else node_commands.uncordon
        self.fleet.ask(lambda: command(self.fleet.call, node))

    @rule(number=which, seconds=st.sampled_from([2.0, 600.0]), force=st.booleans())
    def drain(self, number: int, seconds: float, force: bool) -> None:
        node = self.one(self.fleet.agents, number)
        call = dataclasses.replace(self.fleet.call, force=force)
        self.fleet.ask(lambda: node_commands.drain(call, node, seconds))

    @rule(number=which)
    def undrain(self, number: int) -> None:
        node = self.one(self.fleet.agents, number)
        self.fleet.ask(lambda: node_commands.undrain(self.fleet.call, node))

    @rule(number=which, zone=st.sampled_from(ZONES))
    def relabel(self, number: int, zone: str) -> None:
        node = self.one(self.fleet.agents, number)
        self.fleet.ask(lambda: node_commands.label(self.fleet.call, node, {"zone": zone}))

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

    @rule(number=which, instance=st.sampled_from(["web", "db", "web~0", "web~1", "db~0"]), sick=st.booleans())
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

    @rule(
        family=st.sampled_from(["rcs", "rcs", "nodes", "pods", "status", "reality", "failsafe", "agents"]),
        number=which,
        value=st.sampled_from(GARBAGE),
    )
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

    # -- time ----------------------------------------------------------------------------------
    @rule(seconds=pauses)
    def advance(self, seconds: float) -> None:
        self.fleet.advance(seconds)

    @rule(seconds=pauses)
    def wait(self, seconds: float) -> None:
        """Time passes more often than anything else happens."""
        self.fleet.advance(seconds)

    # -- the end -------------------------------------------------------------------------------
    def all_is_well_again(self) -> None:
        """The faults stop; what was asked for must come true."""
        self.restore_sentinels()
        for key in list(self.fleet.corrupted):
            self.fleet.mend(key)
        for process in self.fleet.farms.values():
            if process.alive:
                process.thaw()
                process.line.heal()
        if not any(process.alive for process in self.fleet.farms.values()):
            self.start_farm(FARMS[0])
        for agent in self.fleet.agents.values():
            agent.delay = 0.2
            for instance in list(agent.sick):
                agent.ail(instance, sick=False)
            self.fleet.run(agent.start())
        self._untangle()
        self.fleet.converge()
        for name in [rc.name for rc in self.rcs() if rc.deleting]:
            deleted = self.fleet.ask(lambda name=name: commands.delete(self.fleet.call, name, cascade=False))
            assert deleted is not None, f"{name} cannot be deleted"
        self.fleet.advance(5.0)
        self.fleet.converge()

    def _untangle(self) -> None:
        """Take away what hands put where farms must not touch it: others' intents and garbage."""
        for place in sorted(self.fleet.witness.tampered):
            entry = self.fleet.read(KEYS.intent(*place))
            try:
                intent = codec.decode(Intent, entry.value, entry.key) if entry is not None else None
            except Exception:
                intent = None
            if entry is not None and (intent is None or intent.owner not in self.fleet.sight.rcs):
                self.fleet.delete(KEYS.intent(*place))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_keeps_every_promise_whatever_happens(seed: int) -> None:
    machine = hypothesis.seed(seed)(type(f"Fleet{seed}", (FleetMachine,), {}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES_A_SEED,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
