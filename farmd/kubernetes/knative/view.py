"""A rollout of a Knative Service as people see it: pure.

The next step comes from the farm's own plan, so that people see what will happen.
"""

from __future__ import annotations

import asyncio
import builtins
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from farmd.commands.mutation import Call
from farmd.commands.waiting import fitting
from farmd.kubernetes.client import Objects
from farmd.kubernetes.errors import NotFound
from farmd.kubernetes.knative import bounds, plan, record, scales, traffic
from farmd.kubernetes.knative.facts import Plan, ServiceObjects, Snapshot, assembled, service_of
from farmd.kubernetes.knative.ground import Ground
from farmd.kubernetes.knative.objects import (
    CAUSE,
    RELEASED,
    RESOURCES,
    SERVICES,
    Configuration,
    KnativeRoute,
    KnativeService,
    Orchestrator,
    PodAutoscaler,
    Revision,
    RevisionPod,
    StageAutoscaler,
    condition,
)
from farmd.kubernetes.knative.settings import Settings, load_config_from_service
from farmd.kubernetes.store import Key, Object
from farmd.kubernetes.transport import REQUEST_SECONDS, ApiRequest, KubernetesTransport
from farmd.overview.owners import holders
from farmd.rollout.staging import SERVICE_LABEL, TargetRevision
from farmd.work.status import STUCK
from store import errors
from store.ports import Clock
from store.status import ItemStatus, StatusStore
from store.words import count_of, lasting

# Knative Services and their rollouts as the API server has them when a person asks.

KIND = "progressive"
T = TypeVar("T", bound=Object)


class FoundService(NamedTuple):
    """A service with all that its rollout reads, what is wrong with settings, the farm that has it, and why
    that farm cannot go on.
    """

    knative: Snapshot
    problem: str = ""
    owner: str = ""
    obstacle: str = ""

    @property
    def name(self) -> str:
        """As people write it: ``shop/web``."""
        return self.knative.service.name

    def with_word_of(self, farms: Farms) -> FoundService:
        """The same with what farms say of it."""
        uid = self.knative.service.metadata.uid
        said = farms.statuses.get(uid)
        stuck = said is not None and said.state in STUCK
        obstacle = said.reason if said is not None and stuck else ""
        return self._replace(owner=farms.owners.get(uid, ""), obstacle=obstacle)


class Farms(NamedTuple):
    """The farms' reports on services, by uid: the holder of the lock, and the statuses."""

    owners: Mapping[str, str]
    statuses: Mapping[str, ItemStatus]


async def told(call: Call) -> Farms:
    """The farms' reports on all services."""
    owners = await holders(call.client, call.keys, KIND)
    return Farms(owners, await StatusStore(call.client, call.keys, KIND, ItemStatus).list())


class Services:
    """The Knative Services of one cluster; ``misfits`` are lines for objects that do not decode."""

    def __init__(self, transport: KubernetesTransport, clock: Clock, namespace: str) -> None:
        """``namespace``: that of Knative's controllers, where the settings lie."""
        self._transport, self._clock = transport, clock
        self._ground = Ground(transport, namespace, clock)
        self.misfits: builtins.list[str] = []

    def of(self, kind: type[T]) -> Objects[T]:
        """The objects of one type."""
        resource, misfits = RESOURCES[kind], self.misfits
        return Objects(self._transport, resource, kind, "other", lambda: REQUEST_SECONDS, misfits=misfits)

    async def get(self, namespace: str, name: str) -> FoundService:
        """One service and its rollout.

        Raises:
            NotFound: there is none of that name.
        """
        service = await self.of(KnativeService).get(namespace, name)
        if service is None:
            raise errors.NotFound(f"ksvc '{namespace}/{name}' does not exist")
        record = await self.of(Orchestrator).get(namespace, name)
        parts = await self._parts(namespace, f"{SERVICE_LABEL}={name}")
        return self._seen(service, record, parts((namespace, name)))

    async def template(self, namespace: str, name: str) -> Any:
        """The template of a service, whole; None: there is no such service."""
        request = ApiRequest("GET", SERVICES.path(namespace, name))
        try:
            return msgspec.json.decode(await self._transport.send(request))["spec"].get("template")
        except NotFound as error:
            if not error.reason:
                raise  # Knative is not installed
            return None

    async def base(self) -> Settings:
        """The settings of all services."""
        await self._look()
        return self._ground.settings

    async def list(self, namespace: str = "") -> Sequence[FoundService]:
        """The services of a namespace, or of all, whose rollouts are progressive, or were."""
        services, records = await asyncio.gather(
            self.of(KnativeService).list(namespace), self.of(Orchestrator).list(namespace)
        )
        return [
            seen
            for seen in await self.seen(services, records, namespace)
            if seen.knative.service.enabled or seen.knative.orchestrator is not None
        ]

    async def seen(
        self, services: Iterable[KnativeService], records: Iterable[Orchestrator], namespace: str = ""
    ) -> Sequence[FoundService]:
        """Services and records that were read, with all that belongs to them, by name."""
        parts = await self._parts(namespace, SERVICE_LABEL)
        recorded = {(each.metadata.namespace, each.metadata.name): each for each in records}
        found = [
            self._seen(service, recorded.get(key), parts(key))
            for service in services
            for key in [(service.metadata.namespace, service.metadata.name)]
        ]
        return sorted(found, key=lambda seen: seen.name)

    async def _parts(self, namespace: str, selector: str) -> Callable[[Key], ServiceObjects]:
        """What belongs to each service."""
        await self._look()

        async def grouped(kind: type[T]) -> defaultdict[Key, dict[str, T]]:
            """The objects of one type by their service, and then by their own names."""
            found: defaultdict[Key, dict[str, T]] = defaultdict(dict)
            for each in await self.of(kind).list(namespace, selector):
                found[service_of(each)][each.metadata.name] = each
            return found

        configurations, routes, revisions, autoscalers, spas, pods = await asyncio.gather(
            grouped(Configuration),
            grouped(KnativeRoute),
            grouped(Revision),
            grouped(PodAutoscaler),
            grouped(StageAutoscaler),
            grouped(RevisionPod),
        )
        return lambda key: ServiceObjects(
            configurations[key], routes[key], revisions[key], autoscalers[key], spas[key], pods[key]
        )

    def _seen(
        self, service: KnativeService, record: Orchestrator | None, parts: ServiceObjects
    ) -> FoundService:
        ground = self._ground
        settings, wrong = load_config_from_service(ground.settings, service)
        found = assembled(
            service,
            service.metadata.uid,
            record,
            parts,
            settings=settings,
            bounds_on_revisions=ground.bounds_on_revisions,
            now=self._clock.now(),
        )
        return FoundService(found, ground.problem or "; ".join(wrong))

    async def _look(self) -> None:
        """Knative's version and settings, once; a person may lack the right to read them."""
        if not self._ground.found.is_set():
            await self._ground.look()


SERVES = "Ready"


class RolloutRow(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout of one service in a list, or of one controller beside it; ``target``: ksvc or rc."""

    target: str = "ksvc"
    name: str
    id: str
    phase: str
    stage: int = 0
    stages: int = 0
    shares: str = ""
    strategy: str = ""
    owner: str = ""
    reason: str = ""


class RevisionPodRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a revision that takes part."""

    side: str
    revision: str
    pod: str
    state: str
    reason: str = ""


def row(seen: FoundService) -> RolloutRow:
    """How far it is."""
    knative, planned = seen.knative, plan.decide(seen.knative)
    number, total = record.position(knative) if _moves(knative) else (0, 0)
    return RolloutRow(
        name=seen.name,
        id=knative.service.metadata.uid,
        phase="blocked" if _obstructed(seen, planned) else phase(knative, planned),
        stage=number,
        stages=total,
        shares=", ".join(f"{name} {share} %" for name, share in sorted(knative.routed.items()) if share),
        strategy=f"{knative.settings.strategy}, ratio {knative.settings.ratio}",
        owner=seen.owner,
        reason=reason(seen, planned),
    )


def phase(knative: Snapshot, planned: Plan) -> str:
    """One word: off, waiting, done, moving, back, paused, halted or blocked."""
    there = knative.orchestrator
    if (RELEASED in there.metadata.annotations) if there is not None else not knative.service.enabled:
        return "off"
    if planned.blocked is not None:
        return {"paused": "paused", "failed": "halted"}.get(planned.blocked.code, "blocked")
    if there is None:
        return "waiting"
    if scales.rollout(knative).ready is True:
        return "done"
    return "back" if record.back(knative) else "moving"


def reason(seen: FoundService, planned: Plan) -> str:
    """What it waits for, or why it turned back; empty: nothing is in its way."""
    if planned.blocked is not None:
        return planned.blocked.text
    if seen.problem:
        return seen.problem
    if _obstructed(seen, planned):
        return seen.obstacle
    if seen.knative.orchestrator is None:
        return planned.waiting
    return seen.knative.record.metadata.annotations.get(CAUSE, "")


def _obstructed(seen: FoundService, planned: Plan) -> bool:
    """Whether its farm cannot do what is to be done, as where the API server refuses it."""
    return bool(seen.obstacle) and planned.blocked is None and not planned.empty


def _moves(knative: Snapshot) -> bool:
    """Whether there is a stage that is not the end."""
    return knative.orchestrator is not None and scales.rollout(knative).ready is not True


def lines(seen: FoundService, width: int = 0) -> list[str]:
    """One line for itself, one for each revision of its stage, and what it waits for."""
    knative, found = seen.knative, row(seen)
    head = [f"ksvc/{found.name}", found.phase]
    if _moves(knative):
        head += [f"stage {found.stage} of {found.stages}", found.strategy, *_times(knative)]
    sides = _sides(knative) if _moves(knative) else [f"  {found.shares}"] if found.shares else []
    why = [f"  {found.reason}"] if found.reason else []
    return fitting(["  ".join([*head, found.owner or "no farm"]), *sides, *why], width)


def _times(knative: Snapshot) -> Iterator[str]:
    yield lasting(knative.now - scales.since(knative))
    left = plan.deadline(knative) - knative.now
    yield f"deadline in {lasting(left)}" if left > 0 else "deadline over"


def _sides(knative: Snapshot) -> list[str]:
    stage = knative.record.spec.stage_target_revisions
    size = max((len(each.revision_name) for each in stage), default=0)
    return [
        f"  {each.direction or 'up':<4}  {each.revision_name:<{size}}  {_side(knative, each)}"
        for each in stage
    ]


def _side(knative: Snapshot, goal: TargetRevision) -> str:
    """``20 -> 40 %  3 of 4 pods, bounds 4/10; web-00002-x7: Pending, Insufficient cpu``."""
    name, share = goal.revision_name, goal.percent or 0
    now = knative.routed.get(name, 0)
    moved = f"{now} %" if now == share else f"{now} -> {share} %"
    pods = traffic.actual(knative, name)
    have = "? pods" if pods is None else count_of(pods, "pod")
    if goal.direction in ("", "up") and goal.target_replicas is not None and pods != goal.target_replicas:
        have = f"{'?' if pods is None else pods} of {count_of(goal.target_replicas, 'pod')}"
    standing, final = bounds.standing(knative, name), bounds.final(knative, name)
    told = f"{moved}  {have}, bounds {bounds.written(standing)}"
    told += f" (final {bounds.written(final)})" if final != standing else ""
    if goal.direction == "down" and now > share:
        told += f", shrinks when the Route shows {share} %"
    ailing = _ailing(knative, name) if goal.direction in ("", "up") else ""
    return f"{told}; {ailing}" if ailing else told


def _ailing(knative: Snapshot, name: str) -> str:
    """The first pod that does not serve, and why; else what is wrong with the revision."""
    for pod in knative.pods.get(name, ()):
        state, why = _state(pod)
        if state not in ("serves", "ends", "over"):
            return f"{pod.metadata.name}: {', '.join(filter(None, (state, why)))}"
    return scales.failing(knative, name)


def _state(pod: RevisionPod) -> tuple[str, str]:
    """What a pod does, and why it does not serve."""
    if pod.status.phase in scales.OVER:
        return "over", pod.status.reason
    if pod.metadata.terminating:
        return "ends", ""
    found = {each.type: each for each in pod.status.conditions}
    if SERVES in found and found[SERVES].status == "True":
        return "serves", ""
    placed = found.get("PodScheduled")
    if placed is not None and placed.status == "False":
        return pod.status.phase or "Pending", placed.message or placed.reason
    waits = [each.state.waiting.reason for each in pod.status.container_statuses if each.state.waiting]
    return pod.status.phase or "Pending", (waits or [""])[0]


def explained(seen: FoundService) -> list[str]:
    """Every line of the status, the next step of a farm, and Knative's report on each revision."""
    knative, planned = seen.knative, plan.decide(seen.knative)
    told = lines(seen)
    if planned.turn is not None:
        told.append(
            f"  next: {planned.turn.action}{f', {planned.turn.reason}' if planned.turn.reason else ''}"
        )
    elif planned.writes:
        told.append(f"  next: {count_of(len(planned.writes), 'write')}, first {_write(planned)}")
    elif planned.waiting:
        told.append(f"  waits until {planned.waiting} exists")
    for name, revision in sorted(knative.revisions.items()):
        ready = condition(revision.status.conditions, "Ready")
        why = f": {', '.join(filter(None, (ready.reason, ready.message)))}" if ready.reason else ""
        told.append(f"  {name} is {'ready' if ready.status == 'True' else 'not ready'}{why}")
    for each in record.refused(knative):
        told.append(f"  {each} was reverted: farmctl rollout retry ksvc/{seen.name} {each}")
    return told


def _write(planned: Plan) -> str:
    first = planned.writes[0]
    of = getattr(first, "revision", "")
    return f"{type(first).__name__}{f' of {of}' if of else ''}"


def stage(seen: FoundService) -> tuple[TargetRevision, ...]:
    """The goal of the present stage."""
    return seen.knative.record.spec.stage_target_revisions if seen.knative.orchestrator is not None else ()


def pods(seen: FoundService) -> list[RevisionPodRow]:
    """The pods of all revisions that have some."""
    knative = seen.knative
    sides = {each.revision_name: each.direction or "up" for each in stage(seen)}
    return [
        RevisionPodRow(
            side=sides.get(name, ""), revision=name, pod=pod.metadata.name, state=state, reason=why
        )
        for name in sorted(knative.pods)
        for pod in knative.pods[name]
        for state, why in (_state(pod),)
    ]
