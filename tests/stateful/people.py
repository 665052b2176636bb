"""What people ask of a fleet, well or badly considered: rules for ``test_fleet``.

Every rule draws small numbers that choose among what there is. Edits go the way of the command line;
``by hand`` is somebody with a key-value editor.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from farmd.commands import failsafe, restarting
from farmd.commands.mutation import Mutation
from farmd.daemonset.commands import DAEMON_SET
from farmd.nodes import commands as node_commands
from farmd.replication import commands
from farmd.replication.commands import RC, ControllerSpec
from farmd.rollout import commands as rollouts
from farmd.services import commands as services
from store.daemonsets import DaemonSet
from store.families import of
from store.rcs import ReplicationController
from tests.people import hello
from tests.stateful.fleet import KEYS, Fleet

NAMES = ("web", "api", "db", "job")
DAEMONSETS = ("logs", "mesh", "spy")
ZONES = ("a", "b")
SELECTORS = ("", "zone=a", "zone in (a,b)", "zone!=b")
TEAMS = ("", "red", "blue")
POLICIES: tuple[dict[str, Any], ...] = (
    {"progress_deadline": 20},
    {"progress_deadline": 20, "minimum": "50%", "stages": ["100%"]},
    {
        "progress_deadline": 10,
        "minimum": 0,
        "stages": [{"to": 1, "bake": 5}, {"to": "100%", "approve": True}],
    },
    {"progress_deadline": 15, "on_failure": "pause", "leave_old": True},
    {
        "progress_deadline": 20,
        "stages": [{"to": 1, "bake": 3}, "100%"],
        "gates": [{"name": "moody", "http": "http://moody/", "every": 1, "timeout": 1, "passes": 2}],
    },
    {"progress_deadline": 20, "strategy": "availability", "ratio": 40},
    {"progress_deadline": 20, "strategy": "resourceutil", "ratio": 40},
    {"progress_deadline": 20, "strategy": "resourceutil", "minimum": 1, "stages": ["50%", "100%"]},
    {"progress_deadline": 20, "strategy": "blue-green", "keep_old": 8},
)
MOST_NODES = 7
MIN_HEALTHY_TIME = 1.0

which = st.integers(0, 30)
counts = st.integers(0, 5)
teams = st.sampled_from(TEAMS)


class People(RuleBasedStateMachine):
    """Choosing, and what people do."""

    fleet: Fleet
    versions: int

    # -- choosing ------------------------------------------------------------------------------
    def rcs(self) -> list[ReplicationController]:
        return sorted(self.fleet.sight.rcs.values(), key=lambda rc: rc.name)

    def daemonsets(self) -> list[DaemonSet]:
        return sorted(self.fleet.sight.daemonsets.values(), key=lambda each: each.name)

    def one(self, things: Any, number: int) -> Any:
        things = sorted(things)
        return things[number % len(things)] if things else None

    def created(self, family: str, prepared: Callable[[], Any], extra: dict[str, Any]) -> None:
        """Create a record and give it fields that only a newer version knows."""
        made: Mutation | None = self.fleet.ask(prepared)
        if made is not None and made.needed:
            self.by_hand(KEYS.record(family, made.change.id), **extra)

    def by_hand(self, key: str, **fields: Any) -> None:
        entry = self.fleet.read(key)
        if entry is not None and key not in self.fleet.corrupted:
            self.fleet.put(key, json.dumps(json.loads(entry.value) | fields).encode())

    # -- controllers ---------------------------------------------------------------------------
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
        team=teams,
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
        team: str,
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
            labels={"team": team} if team else {},
        )
        extra = {"x-team": name, "unhealthy_after": 6.0, "transfer_timeout": 12.0}
        self.created("rcs", lambda: RC.create(self.fleet.call, spec), extra)

    def _spec(self, **fields: Any) -> ControllerSpec:
        pod = {"pod_ports": {"http": {"port": 0}}}
        return RC.file.parse(hello(min_healthy_time=MIN_HEALTHY_TIME, **pod, **fields), "test")

    @rule(number=which, replicas=counts)
    def set_replicas(self, number: int, replicas: int) -> None:
        if rc := self.one([rc.name for rc in self.rcs()], number):
            self.fleet.ask(lambda: commands.set_replicas(self.fleet.call, rc, replicas))

    @rule(number=which, disabled=st.booleans())
    def set_disabled(self, number: int, disabled: bool) -> None:
        if rc := self.one([rc.name for rc in self.rcs()], number):
            command = RC.disable if disabled else RC.enable
            self.fleet.ask(lambda: command(self.fleet.call, rc))

    @rule(
        number=which, cpu=st.sampled_from([None, None, 0.0, 1.0, 2.0]), team=st.sampled_from([None, *TEAMS])
    )
    def update(self, number: int, cpu: float | None, team: str | None) -> None:
        """A new manifest, in place; now and then it becomes another farm's."""
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
            labels=rc.labels if team is None else ({"team": team} if team else {}),
        )
        self.fleet.ask(lambda: RC.update(self.fleet.call, spec, now=True))

    # -- rollouts ------------------------------------------------------------------------------
    @rule(number=which, policy=st.sampled_from(POLICIES), cpu=st.sampled_from([None, None, 0.0, 1.0]))
    def roll(self, number: int, policy: dict[str, Any], cpu: float | None) -> None:
        """A new version, by a rollout."""
        rcs = self.rcs()
        if not rcs:
            return
        rc = rcs[number % len(rcs)]
        self.versions += 1
        file = RC.file.as_file(rc, self.fleet.sight.manifests[rc.manifest])
        file["pod"] |= {"command": ["sleep", str(self.versions)]}
        if cpu is not None:
            file["pod"]["resources"] = {"cpu": cpu} if cpu else {}
        spec = RC.file.parse(file | {"rollout": policy}, "test")
        if policy.get("strategy") == "blue-green":  # which switches a service
            self.fleet.ask(lambda: services.create(self.fleet.call, f"of-{rc.name}", "http", [rc.name]))
        self.fleet.ask(lambda: RC.update(self.fleet.call, spec, now=False))

    @rule(number=which, policy=st.sampled_from([None, None, *POLICIES]))
    def fix(self, number: int, policy: dict[str, Any] | None) -> None:
        """Another version in place of one that is coming."""
        name = self.one(self.rollouts(), number)
        rc = next((rc for rc in self.rcs() if rc.name == name), None)
        if rc is None:
            return
        self.versions += 1
        file = RC.file.as_file(rc, self.fleet.sight.manifests[rc.manifest])
        file["pod"] |= {"command": ["sleep", str(self.versions)]}
        del file["replicas"]
        spec = RC.file.parse(file | ({} if policy is None else {"rollout": policy}), "test")
        self.fleet.ask(lambda: RC.update(self.fleet.call, spec, now=False, supersede=True))

    def rollouts(self) -> list[str]:
        return sorted(each.name for each in self.fleet.sight.rollouts.values())

    @rule(number=which, word=st.sampled_from(["pause", "resume", "resume", "revert", "abort", "approve"]))
    def say(self, number: int, word: str) -> None:
        """What a person says of a rollout; a revert after the end begins another one."""
        name = self.one(self.rollouts() or [rc.name for rc in self.rcs()], number)
        if name:
            command = getattr(rollouts, word)
            self.fleet.ask(lambda: command(self.fleet.call, name))

    @rule(number=which)
    def restart(self, number: int) -> None:
        if rc := self.one([rc.name for rc in self.rcs()], number):
            self.fleet.ask(lambda: RC.restart(self.fleet.call, rc))

    @rule(number=which)
    def restart_pod(self, number: int) -> None:
        if place := self.one(list(self.fleet.sight.intents), number):

            async def asked() -> Mutation:
                return (await restarting.restart(self.fleet.call, *place)).mutation

            self.fleet.ask(asked)

    @rule(number=which)
    def delete(self, number: int) -> None:
        """Mark it, or take it away if it was marked and has no pods left."""
        if rc := self.one([rc.name for rc in self.rcs()], number):
            self.fleet.ask(lambda: RC.delete(self.fleet.call, rc, cascade=True))

    @rule(number=which, managed=st.booleans())
    def manage(self, number: int, managed: bool) -> None:
        """Something takes an owner of pods over that is no rollout, or lets it go (R14)."""
        live = {f"rollouts/{each}" for each in self.fleet.sight.rollouts}
        owners = [rc for rc in (*self.rcs(), *self.daemonsets()) if rc.managed_by not in live]
        if owners:
            owner = owners[number % len(owners)]
            key = KEYS.record(of(owner).name, owner.id)
            self.by_hand(key, managed_by="rollouts/0123456789abcdef" if managed else "", taken=managed)

    @rule(number=which, held=st.booleans())
    def hold(self, number: int, held: bool) -> None:
        """Somebody takes a controller's mutation lock, or lets it go."""
        rcs = self.rcs()
        if not rcs:
            return
        key = KEYS.mutation_lock("rcs", rcs[number % len(rcs)].id)
        if not held:
            self.fleet.delete(key)
        elif self.fleet.read(key) is None:
            self.fleet.lock(key)

    # -- daemon sets ---------------------------------------------------------------------------
    @rule(
        name=st.sampled_from(DAEMONSETS),
        selector=st.sampled_from(SELECTORS),
        pod=st.sampled_from(["log", "log", "web", "mesh"]),
        cpu=st.sampled_from([0.0, 0.0, 1.0]),
        floor=st.sampled_from([None, None, 0, 2, "50%"]),
        rate=st.sampled_from([0, 0, 1, 3]),
        in_progress=st.sampled_from([50, 1, 2]),
        team=teams,
    )
    def create_daemonset(
        self,
        name: str,
        selector: str,
        pod: str,
        cpu: float,
        floor: int | str | None,
        rate: int,
        in_progress: int,
        team: str,
    ) -> None:
        spec = DAEMON_SET.file.parse(
            {
                "name": name,
                "node_selector": selector,
                "min_health": floor,
                "rate": rate,
                "max_in_progress": in_progress,
                "min_healthy_time": MIN_HEALTHY_TIME,
                "labels": {"team": team} if team else {},
                "pod": {
                    "id": pod,
                    "command": ["sleep", "9"],
                    "resources": {"cpu": cpu} if cpu else {},
                    "system": name == "mesh",
                },
            },
            "test",
        )
        command = DAEMON_SET.create
        self.created("daemonsets", lambda: command(self.fleet.call, spec), {"x-team": name})

    @rule(
        number=which,
        cpu=st.sampled_from([None, None, 0.0, 1.0, 2.0]),
        selector=st.sampled_from([None, None, *SELECTORS]),
        team=st.sampled_from([None, *TEAMS]),
    )
    def update_daemonset(
        self, number: int, cpu: float | None, selector: str | None, team: str | None
    ) -> None:
        daemonsets = self.daemonsets()
        if not daemonsets:
            return
        old = daemonsets[number % len(daemonsets)]
        self.versions += 1
        manifest = self.fleet.sight.manifests[old.manifest]
        file = DAEMON_SET.file.as_file(old, manifest)
        file["pod"] |= {"command": ["sleep", str(self.versions)]}
        if cpu is not None:
            file["pod"]["resources"] = {"cpu": cpu} if cpu else {}
        if selector is not None:
            file["node_selector"] = selector
        if team is not None:
            file["labels"] = {"team": team} if team else {}
        spec = DAEMON_SET.file.parse(file, "test")
        self.fleet.ask(lambda: DAEMON_SET.update(self.fleet.call, spec, now=True))

    @rule(number=which)
    def restart_daemonset(self, number: int) -> None:
        if name := self.one([each.name for each in self.daemonsets()], number):
            self.fleet.ask(lambda: DAEMON_SET.restart(self.fleet.call, name))

    @rule(number=which, disabled=st.booleans())
    def disable_daemonset(self, number: int, disabled: bool) -> None:
        if name := self.one([each.name for each in self.daemonsets()], number):
            command = DAEMON_SET.disable if disabled else DAEMON_SET.enable
            self.fleet.ask(lambda: command(self.fleet.call, name))

    @rule(number=which)
    def delete_daemonset(self, number: int) -> None:
        """Mark it, or take it away if it was marked and has no pods left."""
        if name := self.one([each.name for each in self.daemonsets()], number):
            self.fleet.ask(lambda: DAEMON_SET.delete(self.fleet.call, name, cascade=True))

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

    @rule(number=which, tainted=st.booleans())
    def taint(self, number: int, tainted: bool) -> None:
        taints = [{"key": "broken-fan", "effect": "no-schedule"}] if tainted else []
        self.by_hand(KEYS.node(self.one(self.fleet.agents, number)), taints=taints)

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

    # -- the freeze ----------------------------------------------------------------------------
    @rule(kind=st.sampled_from(["rcs", "daemonsets", "nodes"]))
    def acknowledge(self, kind: str) -> None:
        """A person understands the evidence of a freeze, and lets removals go on (R18)."""
        freeze = self.fleet.witness.freeze(kind)
        if freeze is not None:
            self.fleet.ask(lambda: failsafe.clear(self.fleet.call, kind, freeze.evidence, 30.0))
