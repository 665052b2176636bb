"""How the pods of a service come to fit its spec: pure (uncloud ``deploy.RollingStrategy``).

What must never break: equal input gives an equal plan, so that the preview and the farm that acts agree; no
plan puts two pods on a machine that cannot hold both; and a pod is only removed once the pods that take its
place are in the plan before it. Where this differs from uncloud: a pod that fails is outdated, a machine's
room and ports decide the order of a replacement before the file does, machines are taken by load and not by
lot, and a pod stays on a machine that only takes no new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from farmd.deploy import spec as deploy_spec
from farmd.deploy.manifest import request_of
from farmd.deploy.operations import (
    Operation,
    Plan,
    RemoveContainerOperation,
    ReplaceContainerOperation,
    RunContainerOperation,
    RunPreDeployOperation,
    ServicePod,
    StandingService,
    StopContainerOperation,
    Way,
)
from farmd.deploy.spec import ContainerSpecStatus, ServiceSpec
from farmd.deploy.spec_diff import eval_container_spec_change
from scheduler.cluster import ClusterState, Machines
from scheduler.feasibility import port_text
from scheduler.model import PlacementRequest
from store.manifests import PORT_RESOURCE, asked


class Strategy(Protocol):
    """Plans one service."""

    type: ClassVar[str]
    """Its name, such as ``rolling``."""

    def plan(
        self,
        state: ClusterState,
        service: StandingService | None,
        spec: ServiceSpec,
        machines: Machines | None = None,
    ) -> Plan:
        """The operations that make a service match its spec; ``service`` None: it is new.

        ``machines`` are those that its volumes leave; None: all that have them.

        Raises:
            NoMachine: no machine can take it.
        """


@dataclass(frozen=True, slots=True)
class RollingStrategy:
    """Replaces pods one by one; ``force_recreate``: also those that fit. ``new_id`` names a new service."""

    force_recreate: bool = False
    new_id: str = ""
    type: ClassVar[str] = "rolling"

    def plan(
        self,
        state: ClusterState,
        service: StandingService | None,
        spec: ServiceSpec,
        machines: Machines | None = None,
    ) -> Plan:
        """As ``Strategy``."""
        standing = service or StandingService(id=self.new_id, name=spec.name, mode=spec.mode)
        request = request_of(spec, standing.id, near=machines is None)
        planner = _Planner(state, standing, spec, self._status(spec), machines, request)
        planner.choose()
        (planner.everywhere if spec.mode == "global" else planner.replicated)()
        first = [*planner.changes, *planner.removals]
        operations = (*planner.hook(first), *first)
        return Plan(operations, standing.id, spec.name, tuple(planner.short))

    def _status(self, spec: ServiceSpec) -> Callable[[ServicePod], ContainerSpecStatus]:
        known: dict[int, ContainerSpecStatus] = {}  # the pods of a service mostly share one spec

        def status(pod: ServicePod) -> ContainerSpecStatus:
            if pod.mine and pod.running:
                return ContainerSpecStatus.UP_TO_DATE
            if pod.spec is None or pod.failing or not pod.running or self.force_recreate:
                return ContainerSpecStatus.NEEDS_RECREATE
            if id(pod.spec) not in known:
                known[id(pod.spec)] = eval_container_spec_change(pod.spec, spec)
            return known[id(pod.spec)]

        return status


@dataclass(slots=True)
class _Planner:
    """One service's plan while it is made; ``left`` are the pods of each machine that are not planned yet."""

    state: ClusterState
    service: StandingService
    spec: ServiceSpec
    status: Callable[[ServicePod], ContainerSpecStatus]
    machines: Machines | None
    request: PlacementRequest
    eligible: Machines = 0
    left: dict[str, list[ServicePod]] = field(default_factory=dict)
    gone: list[ServicePod] = field(default_factory=list)
    changes: list[Operation] = field(default_factory=list)
    removals: list[Operation] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    amounts: dict[str, float] = field(default_factory=dict)
    own: Counter[str] = field(default_factory=Counter)
    """How many pods of the service each machine will have by the plan so far."""

    def choose(self) -> None:
        """Choose the machines that may get pods, and the pods that may stay."""
        suitable, request = self.state.suitable(self.request), self.request
        having = -1
        for volume in self.spec.mounted():
            having &= self.state.having(volume.volume_name)
        allowed = having if self.machines is None else having & self.machines
        self.eligible, self.amounts = suitable.eligible & allowed, asked(request.manifest)
        retained = suitable.retained & allowed
        for pod in self.service.containers:
            machine = pod.place[0]
            waits = self.spec.on_lost == "wait" and self._lost(machine) and self._named(machine)
            if waits or self.state.bit(machine) & retained:
                self.left.setdefault(machine, []).append(pod)
                self.own[machine] += 1
            else:
                self.gone.append(pod)
        for pods in self.left.values():
            pods.sort(key=lambda pod: (not self.fits(pod), pod.failing, not pod.running, pod.place))
        if not self.eligible and not self.left and self._wants_pods():
            raise self.state.no_machine(request, self.spec.name, allowed)

    def fits(self, pod: ServicePod) -> bool:
        """Whether a pod matches the spec."""
        return self.status(pod) is ContainerSpecStatus.UP_TO_DATE

    def replicated(self) -> None:
        """Go round the machines, those with pods first, until there are as many as wanted."""
        order, planned = self._order(), 0
        across = _across(self.spec)
        while order and planned < self.spec.replicas:
            still = []
            for machine in order:
                if planned == self.spec.replicas:
                    break
                if self.left.get(machine):
                    self._keep(self.left[machine].pop(0))
                elif across or not self._run(machine):
                    continue
                planned += 1
                still.append(machine)
            order = still
        if across and planned < self.spec.replicas:
            places = self.state.best(self.request, self.eligible, self.spec.replicas - planned)
            planned += sum(map(self._run, places))
        if planned < self.spec.replicas:
            missing = f"{self.spec.replicas - planned} of {self.spec.replicas} pods"
            self.short.append(f"{missing} find no machine{self._lacking()}")
        failing = {pod.place for pod in self.service.containers if pod.failing}
        self.changes.sort(key=lambda each: getattr(each, "place", None) not in failing)
        self._remove([pod for pods in self.left.values() for pod in pods])

    def everywhere(self) -> None:
        """One pod on each machine."""
        for machine in sorted({*self.state.listed(self.eligible), *self.left}):
            pods = self.left.get(machine, [])
            running = [pod for pod in pods if pod.running]
            kept = next((pod for pod in running if self.fits(pod)), None)
            if kept is None and running:
                kept = running[0]
                for other in running[1:]:
                    if other.spec is None or deploy_spec.conflicting(self.spec.ports, other.spec.ports):
                        self.changes.append(StopContainerOperation(self.service.id, other.place))
                self._keep(kept)
            elif kept is None and not self._run(machine):
                if pods:
                    kept = pods[0]
                    self._keep(kept)
                else:
                    self.short.append(f"{machine} has no room for it")
            self._remove([pod for pod in pods if pod is not kept])
        self._remove([])

    def hook(self, operations: list[Operation]) -> list[Operation]:
        """The hook, where the first pod comes or changes; not where pods only go."""
        if self.spec.pre_deploy is None:
            return []
        for each in operations:
            if isinstance(each, RunContainerOperation):
                return [RunPreDeployOperation(self.service.id, self.spec, each.machine)]
            if isinstance(each, ReplaceContainerOperation):
                return [RunPreDeployOperation(self.service.id, self.spec, each.place[0])]
        return []

    def _order(self) -> list[str]:
        def rank(machine: str) -> tuple[int, int, int, int]:
            pods = self.left[machine]
            fitting = sum(map(self.fits, pods))
            return -fitting, -len(pods), self._load(machine), self.state.bit(machine)

        holders = sorted(self.left, key=rank)
        if _across(self.spec):
            return holders
        others = self.state.emptiest(self.eligible & ~self.state.bits(holders), self.amounts)
        missing = max(0, self.spec.replicas - len(holders))
        return holders + [name for _, name in zip(range(missing), others, strict=False)]

    def _run(self, machine: str) -> bool:
        """Plan one more pod on a machine, if it may take one."""
        if not self.state.bit(machine) & self.eligible or not self._has_room(machine):
            return False
        if 0 < self.spec.placement.max_per_node <= self.own[machine] or self._holds_port(machine):
            return False
        self.state.reserve(machine, self.amounts, self.service.id)
        self.own[machine] += 1
        self.changes.append(RunContainerOperation(self.service.id, self.spec, machine))
        return True

    def _keep(self, pod: ServicePod) -> None:
        if not self.fits(pod):
            order, why = self._way(pod)
            self.changes.append(ReplaceContainerOperation(self.service.id, self.spec, pod.place, order, why))

    def _way(self, pod: ServicePod) -> tuple[Way, str]:
        """In which order a pod is replaced, and why if the machine decides it."""
        spec, machine = self.spec, pod.place[0]
        if pod.spec is None:
            return "stop-first", "what it runs cannot be read"
        if held := deploy_spec.conflicting(spec.ports, pod.spec.ports):
            return "stop-first", f"one port for both, {deploy_spec.text(held[0])}"
        if not self.state.bit(machine) & self.eligible:
            return "stop-first", "the machine accepts no new pods"
        if not self._has_room(machine):
            return "stop-first", "no room for both"
        if spec.update.order:
            return spec.update.order, ""
        if spec.replicas <= 1 and spec.mounted():
            return "stop-first", f"one volume for both, {spec.mounted()[0].volume_name}"
        return "start-first", ""

    def _lacking(self) -> str:
        """What is missing on the first machine with too little room; other services of the plan may have
        taken it.
        """
        for machine in self.state.listed(self.eligible):
            for name, amount in self.amounts.items():
                if self.state.room(machine, {name: amount}) < 1:
                    what = (
                        f"{port_text(name)} is taken"
                        if name.startswith(PORT_RESOURCE)
                        else f"too little {name}"
                    )
                    return f": {machine}: {what}"
        return ""

    def _remove(self, pods: list[ServicePod]) -> None:
        leaving = sorted([*pods, *self.gone], key=lambda pod: (not pod.failing, pod.place))
        self.gone = []
        self.removals += [RemoveContainerOperation(self.service.id, pod.place) for pod in leaving]

    def _holds_port(self, machine: str) -> bool:
        """Whether a pod of the service has, or will have, a port there that no second one can have."""
        if not any(port.published for port in self.spec.ports):
            return False
        planned = (getattr(each, "place", None) or (getattr(each, "machine", ""),) for each in self.changes)
        return any(place[0] == machine for place in planned) or any(
            pod.place[0] == machine
            and (pod.spec is None or bool(deploy_spec.conflicting(self.spec.ports, pod.spec.ports)))
            for pod in self.service.containers
        )

    def _has_room(self, machine: str) -> bool:
        return not self.amounts or self.state.room(machine, self.amounts) >= 1

    def _load(self, machine: str) -> int:
        return self.state.load(machine) if machine in self.state.view else 0

    def _lost(self, machine: str) -> bool:
        node = self.state.view.get(machine)
        return node is not None and node.presence == "lost"

    def _named(self, machine: str) -> bool:
        """Whether the spec leaves a machine to it: a project that stands together may be given another."""
        return not self.spec.placement.machines or machine in self.spec.placement.machines

    def _wants_pods(self) -> bool:
        return self.spec.mode == "global" or self.spec.replicas > 0


def _across(spec: ServiceSpec) -> bool:
    """Whether rules or preferences of its placement compare machines with one another."""
    said = spec.placement
    return bool(said.affinity or said.anti_affinity or said.spread)
