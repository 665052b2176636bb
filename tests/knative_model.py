"""A small pure model of Knative and of an API server, in which plans of rollouts are carried out.

A revision has as many pods as its autoscaler wants by its bounds and its share of the load. ``step`` lets one
thing happen: a pod comes, goes or ends, or the route follows the service.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from farmd.kubernetes.knative.bounds import written
from farmd.kubernetes.knative.facts import (
    Bounds,
    Drop,
    Plan,
    Reap,
    RevisionBounds,
    Snapshot,
    StageBounds,
    Traffic,
    Turn,
    Write,
)
from farmd.kubernetes.knative.objects import (
    FINAL,
    FINALIZER,
    MANAGER,
    UNREACHABLE,
    AutoscalerSpec,
    AutoscalerStatus,
    Conditions,
    KnativeCondition,
    Meta,
    Orchestrator,
    PodAutoscaler,
    Revision,
    RevisionPod,
    StageAutoscaler,
    StageAutoscalerSpec,
    TrafficTarget,
)
from farmd.kubernetes.knative.plan import decide
from farmd.kubernetes.knative.settings import Settings
from farmd.kubernetes.objects import PodStatus
from store.times import rfc3339
from tests.knative_worlds import FREE, annotations, configuration, entry, owned, route, service

LATEST = (entry("", 100, newest=True),)


@dataclass
class Scale:
    """One revision: the bounds on it, who wrote them, its pods, and whether they ever get ready."""

    bounds: Bounds
    own: set[str] = field(default_factory=set)
    at: float = 0.0
    pods: int = 0
    ending: int = 0
    ready: bool = False
    broken: bool = False


class World:
    """Knative with one service and its record; ``written`` are all turns and writes, in order."""

    def __init__(self, rng: random.Random, settings: Settings, bounds: Bounds = FREE, load: int = 0) -> None:
        self.rng, self.settings, self.load = rng, settings, load
        self.now = self.risen = 1000.0
        self.revisions: dict[str, Scale] = {}
        self.shares: dict[str, int] = {}
        self.tags: dict[str, str] = {}
        self.traffic, self.manager, self.said = LATEST, "kubectl", 1000.0
        self.record: Orchestrator | None = None
        self.spas: dict[str, StageAutoscaler] = {}
        self.enabled, self.frozen = True, None
        self.room = 10_000
        self.written: list[Any] = []
        self.push(bounds)

    # -- people ----------------------------------------------------------------------------------
    def push(self, bounds: Bounds, *, broken: bool = False) -> str:
        """Another template, which becomes a revision at once."""
        self.now += 1.0
        self.template = bounds
        name = f"web-{len(self.revisions) + 1:05d}"
        self.revisions[name] = Scale(bounds, at=self.now, broken=broken)
        return name

    def pin(self, *entries: TrafficTarget, by: str = "kn") -> None:
        """Somebody writes the traffic."""
        self.now += 1.0
        self.traffic, self.manager, self.said = entries, by, self.now

    def say(self, word: str, value: str | None) -> None:
        """Somebody annotates the record."""
        if self.record is not None:
            kept = {**self.record.metadata.annotations, word: value or ""}
            self.record = replace(self.record, metadata=replace(self.record.metadata, annotations=kept))

    # -- what a farm sees and does ----------------------------------------------------------------
    def snapshot(self) -> Snapshot:
        """Everything at this moment."""
        traffic = (owned(self.manager, "spec", "traffic", time=rfc3339(self.said)),)
        return Snapshot(
            service=service(
                bounds=self.template,
                traffic=self.traffic,
                managed_fields=traffic,
                **({} if self.enabled else {"labels": {}}),
            ),
            settings=self.settings,
            configuration=configuration(max(self.revisions)),
            route=route(*self.shares.items(), tags=self.tags),
            revisions={name: _revision(name, each) for name, each in self.revisions.items()},
            autoscalers={name: self._autoscaler(name) for name in self.revisions},
            spas=self.spas,
            pods={name: _ending(name, each.ending) for name, each in self.revisions.items()},
            orchestrator=self.record,
            frozen=self.frozen,
            risen=self.risen,
            now=self.now,
        )

    def _autoscaler(self, name: str) -> PodAutoscaler:
        found = self.revisions[name]
        status = AutoscalerStatus(desired_scale=self.desired(name), actual_scale=found.pods)
        spec = AutoscalerSpec(reachability="Reachable" if self._reached(name) else UNREACHABLE)
        return PodAutoscaler(metadata=Meta(name=name, namespace="shop"), spec=spec, status=status)

    def cycle(self) -> Plan:
        """One cycle of a worker."""
        plan = decide(self.snapshot())
        for each in filter(None, (plan.turn, *plan.writes)):
            self.carry_out(each)
        return plan

    def carry_out(self, change: Turn | Write) -> None:
        """What the API server does of a turn or a write."""
        self.written.append(change)
        if isinstance(change, Turn):
            self._turn(change)
        else:
            self._write(change)

    def _turn(self, turn: Turn) -> None:
        record = self.record or Orchestrator(metadata=Meta(name="web", namespace="shop", uid="record"))
        meta = record.metadata
        says = {**meta.annotations, **turn.annotations}
        meta = replace(meta, annotations={key: each for key, each in says.items() if each is not None})
        if turn.finalizer is not None:
            meta = replace(meta, finalizers=(FINALIZER,) if turn.finalizer else ())
        if turn.spec is not None and turn.spec != record.spec:
            meta = replace(meta, generation=meta.generation + 1)
            record = replace(record, spec=turn.spec)
        self.record = replace(record, metadata=meta, status=turn.status or record.status)

    def _write(self, write: Write) -> None:
        match write:
            case Traffic():
                self.traffic, self.manager = write.entries, MANAGER
            case StageBounds():
                spec = StageAutoscalerSpec(
                    stage_min_scale=write.bounds.least, stage_max_scale=write.bounds.most
                )
                meta = Meta(name=write.revision, annotations={FINAL: written(write.final)})
                self.spas = {**self.spas, write.revision: StageAutoscaler(metadata=meta, spec=spec)}
            case RevisionBounds():
                found = self.revisions[write.revision]
                found.bounds = write.bounds
                found.own = set(annotations(write.bounds))
            case Reap():
                self.revisions[write.pod.metadata.labels["revision"]].ending -= 1
            case Drop():
                self.spas = {name: each for name, each in self.spas.items() if name != write.revision}

    # -- Knative ---------------------------------------------------------------------------------
    def _reached(self, name: str) -> bool:
        """Whether the route reaches a revision, if only by a tag."""
        return name in self.shares or name in self.tags.values()

    def desired(self, name: str) -> int:
        """What the autoscaler wants: of a revision that a route reaches by its bounds and its load."""
        found = self.revisions[name]
        reached = self._reached(name) or (
            not found.ready
            and not found.at < max((self.revisions[each].at for each in self._serving()), default=0.0)
        )
        least = (found.bounds.least or 0) if reached else 0
        wanted = max(-(-self.load * self.shares.get(name, 0) // 100), least, int(not found.ready and reached))
        return min(wanted, found.bounds.most) if found.bounds.most else wanted

    def _serving(self) -> list[str]:
        """The revisions that the route shows, and that nobody deleted."""
        return [name for name in self.shares if name in self.revisions]

    def steps(self) -> list[Any]:
        """What can happen next."""
        found: list[Any] = []
        running = sum(each.pods + each.ending for each in self.revisions.values())
        for name, each in self.revisions.items():
            if each.pods < self.desired(name) and not each.broken and running < self.room:
                found.append((self._come, name))
            if each.pods > self.desired(name):
                found.append((self._go, name))
            if each.ending:
                found.append((self._end, name))
        if self._assigned() not in (None, (self.shares, self.tags)):
            found.append((self._follow, ""))
        return found

    def step(self) -> bool:
        """Let one thing happen; False: nothing can."""
        self.now += self.rng.uniform(0.1, 2.0)
        found = self.steps()
        if found:
            act, name = self.rng.choice(found)
            act(name)
        return bool(found)

    def _come(self, name: str) -> None:
        found = self.revisions[name]
        found.pods += 1
        found.ready = True
        self.risen = self.now

    def _go(self, name: str) -> None:
        self.revisions[name].pods -= 1
        self.revisions[name].ending += 1

    def _end(self, name: str) -> None:
        self.revisions[name].ending -= 1

    def _assigned(self) -> tuple[dict[str, int], dict[str, str]] | None:
        """The shares and tags that the route is to show; None: one of its revisions is not ready."""
        newest = max((name for name, each in self.revisions.items() if each.ready), default="")
        shares, tags = dict[str, int](), dict[str, str]()
        for each in self.traffic:
            name = each.revision_name or newest
            if name not in self.revisions or not self.revisions[name].ready:
                return None
            if each.tag:
                tags[each.tag] = name
            if each.percent is not None or not each.tag:
                shares[name] = shares.get(name, 0) + (each.percent or 0)
        return shares, tags

    def _follow(self, _: str) -> None:
        assigned = self._assigned()
        assert assigned is not None
        self.shares, self.tags = assigned

    # -- running ---------------------------------------------------------------------------------
    def settle(self, most: int = 2000) -> None:
        """Cycles and steps in any order, until neither a farm nor Knative has anything to do."""
        for _ in range(most):
            if self.rng.random() < 0.5:
                self.step()
            elif self.cycle().empty and not self.steps():
                return
            self.check()
        raise AssertionError(f"it does not come to rest: {self.seen()}")

    def until(self, holds: Callable[[], bool], most: int = 2000) -> None:
        """One step and one cycle after the other, until something holds."""
        for _ in range(most):
            if holds():
                return
            self.step()
            self.cycle()
        raise AssertionError(f"it never held: {self.seen()}")

    def check(self) -> None:
        """What must hold after everything that happens; a test says more."""

    def seen(self) -> dict[str, Any]:
        """The world in short."""
        spec, status = (self.record.spec, self.record.status) if self.record else (None, None)
        return {
            "traffic": [(each.revision_name, each.percent) for each in self.traffic],
            "shares": self.shares,
            "revisions": {
                name: (each.bounds, each.pods, each.ending) for name, each in self.revisions.items()
            },
            "spas": {name: each.spec for name, each in self.spas.items()},
            "spec": spec,
            "status": status,
            "plan": decide(self.snapshot()),
            "annotations": self.record.metadata.annotations if self.record else None,
        }


def _revision(name: str, scale: Scale) -> Revision:
    conditions: tuple[KnativeCondition, ...] = (KnativeCondition(type="Ready", status=str(scale.ready)),)
    if scale.broken:
        conditions += (
            KnativeCondition(type="ContainerHealthy", status="False", reason="ExitCode1", message="it ends"),
        )
    meta = Meta(
        name=name,
        namespace="shop",
        uid=f"uid-{name}",
        annotations=annotations(scale.bounds),
        creation_timestamp=rfc3339(scale.at),
        managed_fields=tuple(owned(MANAGER, "metadata", "annotations", key) for key in scale.own),
    )
    return Revision(metadata=meta, status=Conditions(conditions=conditions))


def _ending(name: str, count: int) -> tuple[RevisionPod, ...]:
    return tuple(
        RevisionPod(
            metadata=Meta(
                name=f"{name}-{number}", labels={"revision": name}, deletion_timestamp="2100-01-01T00:00:00Z"
            ),
            status=PodStatus(phase="Running"),
        )
        for number in range(count)
    )
