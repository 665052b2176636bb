"""A whole fleet against anything that people, nodes, the network and Consul may do to it, step by step.

Hypothesis chooses what happens; after every step the world must be as the protocol promises, and once the
faults stop it must become what was asked for. The same seeds try the same in every run (of one
``PYTHONHASHSEED``); ``FARMD_STATEFUL_EXAMPLES`` asks for more, ``FARMD_STATEFUL_SEED`` where to begin.
A failure prints its steps, to be pasted into a test of its own, and the last commits of the store.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from farmd.config.sections import HousekeepingSection
from farmd.daemonset.commands import DAEMON_SET
from farmd.replication.commands import RC
from farmd.rollout import commands as rollouts
from store import codec
from store.families import of
from store.reality import Intent
from tests.effort import first
from tests.stateful.fleet import FARMS, KEYS, Fleet
from tests.stateful.people import POLICIES, ZONES
from tests.stateful.troubles import Troubles

# What passes after one step and the next: now and then something happens in the middle of something else.
PAUSES = (0.004, 1.0, 0.02, 4.0, 0.3, 0.01, 7.0, 0.1)

# Beyond ten examples a run hypothesis tries variations of what it had: more seeds find more.
EXAMPLES_A_SEED = 10
SEEDS = int(os.environ.get("FARMD_STATEFUL_EXAMPLES", "120")) // EXAMPLES_A_SEED
FIRST_SEED = int(os.environ.get("FARMD_STATEFUL_SEED", "1"))
STEPS = 40

# Farms that share controllers and daemon sets by a label: one team's, and everybody else's twice.
PARTITIONS = {"ash": "team=red", "birch": "team!=red", "cedar": "team!=red"}

pauses = st.sampled_from([0.001, 0.05, 0.3, 1.0, 3.0, 8.0, 15.0, 35.0])


class FleetMachine(Troubles):
    """What may happen, and what must hold all the while and in the end."""

    # -- the beginning -------------------------------------------------------------------------
    @initialize(
        nodes=st.integers(2, 5),
        farm_count=st.integers(1, 3),
        prunes=st.booleans(),
        shares=st.booleans(),
        rolls=st.booleans(),
    )
    def begin(self, nodes: int, farm_count: int, prunes: bool, shares: bool, rolls: bool) -> None:
        keeping = HousekeepingSection(
            interval=60.0, manifest_age=60.0, audit_retention=30.0 if prunes else 7 * 24 * 3600.0
        )
        self.fleet = Fleet(keeping, PARTITIONS if shares else {})
        self.missing: dict[str, bytes] = {}
        self.versions = 0
        self.leapt = False
        for number in range(nodes):
            self.add_node(ZONES[number % 2], 4.0)
        for name in FARMS[:farm_count]:
            self.start_farm(name)
        self.create("web", 3, "", "web", 1, 1, 0.0, "dynamic", "replace", "red")
        self.create("api", 2, "zone=a", "db", 2, 1, 1.0, "static", "replace", "")
        self.create_daemonset("logs", "", "log", 0.0, None, 0, 50, "")
        self.fleet.advance(2.0)
        for number in range(2) if rolls else ():
            self.roll(number, POLICIES[number], None)

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
        partitioned = any(process.selector for process in self.fleet.farms.values())
        if partitioned or not any(process.alive for process in self.fleet.farms.values()):
            for name in FARMS[:2]:
                self.start_farm(name)
        for agent in self.fleet.agents.values():
            agent.delay = 0.2
            for instance in list(agent.sick):
                agent.ail(instance, sick=False)
            self.fleet.run(agent.start())
        self._untangle()
        self._end_rollouts()
        self.fleet.converge()
        self._delete_marked()
        self.fleet.advance(5.0)
        self.fleet.converge()
        self.fleet.tidy()

    def _end_rollouts(self) -> None:
        """Each rollout goes on to an end, or says why it cannot; then it is aborted where it is."""
        call = self.fleet.call
        for name in self.rollouts():
            self.fleet.ask(lambda name=name: rollouts.resume(call, name))
            self.fleet.ask(lambda name=name: rollouts.approve(call, name, everything=True))
        for _ in range(60):
            if not self.fleet.sight.rollouts:
                return
            self.fleet.advance(5.0)
            self.fleet.check()
        for ident, rollout in self.fleet.sight.rollouts.items():
            status = self.fleet.sight.status("rollouts", ident)
            assert status is not None, rollout
            assert status.state == "blocked", f"{rollout}: {status}"
            self.fleet.ask(lambda name=rollout.name: rollouts.abort(call, name))

    def _delete_marked(self) -> None:
        """Whatever was being deleted has no pods any more, and can go."""
        for name in [rc.name for rc in self.rcs() if rc.deleting]:
            gone = self.fleet.ask(lambda name=name: RC.delete(self.fleet.call, name, cascade=False))
            assert gone is not None, f"{name} cannot be deleted"
        delete = DAEMON_SET.delete
        for name in [each.name for each in self.daemonsets() if each.deleting]:
            gone = self.fleet.ask(lambda name=name: delete(self.fleet.call, name, cascade=False))
            assert gone is not None, f"{name} cannot be deleted"

    def _untangle(self) -> None:
        """Take away what hands put where farms must not touch it: others' intents, garbage, locks, words."""
        live = {f"rollouts/{each}" for each in self.fleet.sight.rollouts}
        for rc in self.rcs():
            self.fleet.delete(KEYS.mutation_lock("rcs", rc.id))
        for owner in (*self.rcs(), *self.daemonsets()):
            if owner.managed_by and owner.managed_by not in live:
                self.by_hand(KEYS.record(of(owner).name, owner.id), managed_by="", taken=False)
        for place in sorted(self.fleet.witness.tampered):
            entry = self.fleet.read(KEYS.intent(*place))
            try:
                intent = codec.decode(Intent, entry.value, entry.key) if entry is not None else None
            except Exception:
                intent = None
            if entry is not None and (intent is None or intent.owner not in self.fleet.sight.dump.owners):
                self.fleet.delete(KEYS.intent(*place))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", first(1, range(FIRST_SEED, FIRST_SEED + SEEDS)))
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
