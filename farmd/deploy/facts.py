"""The facts of one deployment: its snapshot, and how its owners and pods are read (R15)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from farmd.cache.caches import ManifestCache
from farmd.deploy import gate
from farmd.deploy.gate import Attempts, Judgement, gate_of, min_healthy_time
from farmd.deploy.manifest import spec_of
from farmd.deploy.operations import Operation, ServicePod, StandingService
from farmd.deploy.project import ProjectPlan, ResolvedServices, plan_project, scheduled
from farmd.deploy.spec import ServiceSpec
from farmd.deploy.strategy import RollingStrategy
from farmd.failsafe.guard import Freezes
from farmd.pods.state import PodState, altered, foreign, observed
from farmd.runtime.wake import earliest
from farmd.work.context import Context
from farmd.work.managing import Steady
from scheduler.cluster import ClusterState, Machines
from scheduler.errors import NoMachine, VolumeRefused
from store import codec, deployments
from store.deployments import DEPLOYMENT_LABEL, KIND, Deployment, DeploymentState, GoalState, halted
from store.entry import Stored
from store.errors import NotFound, RecordInvalid
from store.families import FAMILIES
from store.manifests import Manifest
from store.pods import Place
from store.reality import Glance
from store.services import Mode, Service, ServiceStore, Version
from store.work import Work

Turn = Literal["", "back", "pause", "skip", "release"]


Condition = Literal["started", "healthy", "completed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceGoal:
    """One service of a deployment, and how far it is.

    ``spec``: what it should be; None: gone. ``previous``: what it was, None: it was not there. ``service``
    holds its pods, those of this turn as ``mine``. ``taken``: it waits for no other service any more.
    ``started``: how many pods were healthy when it was taken. ``hook`` is the state of its hook,
    ``hook_place`` where that runs. ``altered``: pods whose intent was lost or altered. ``held``: pods may
    come, and none may go. ``rests``: the pods that came last have not been there for the delay, so no further
    one is replaced. ``machines``: as for a plan.
    """

    service: StandingService
    spec: ServiceSpec | None
    previous: ServiceSpec | None = None
    back: bool = False
    taken: bool = False
    released: bool = False
    started: int = 0
    hook: Literal["", "running", "done", "failed"] = ""
    hook_failure: str = ""
    hook_place: Place | None = None
    recreate: bool = False
    after: Mapping[str, Condition] = field(default_factory=dict)
    altered: tuple[Place, ...] = ()
    held: bool = False
    rests: bool = False
    machines: Machines | None = None

    @property
    def wanted(self) -> ServiceSpec | None:
        """The spec that the service should have on its way forward or back; None: it goes."""
        return self.previous if self.back else self.spec

    @property
    def unproven(self) -> int:
        """How many pods of this turn have yet to prove themselves."""
        return sum(pod.mine and not pod.proven for pod in self.service.containers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A deployment at one moment. ``met``: conditions of services that are none of its goals."""

    goals: Sequence[ServiceGoal]
    state: ClusterState
    paused: bool = False
    met: frozenset[tuple[str, Condition]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStep:
    """What to do of one service now: changes of pods, or a turn; else what it waits for (``short``: room).

    ``failed``: the pod because of which it turns.
    """

    service: str
    operations: tuple[Operation, ...] = ()
    repairs: tuple[Place, ...] = ()
    turn: Turn = ""
    reason: str = ""
    failed: Place | None = None
    short: bool = False


async def met(
    context: Context, record: Deployment, state: DeploymentState
) -> frozenset[tuple[str, Condition]]:
    """The conditions of other services that hold now; asked as long as a goal waits to be taken."""
    own = {goal.name for goal in record.goals}
    waiting = [goal for goal in record.goals if goal.service not in state.goals]
    names = {name for goal in waiting for name in goal.after} - own
    found = set[tuple[str, Condition]]()
    for name in sorted(names):
        try:
            stored, _ = await ServiceStore(context.client, context.keys).named(name)
        except RecordInvalid:
            continue
        if stored is not None:
            found |= {(name, condition) for condition in await _holding(context, stored.record)}
    return frozenset(found)


async def _holding(context: Context, service: Service) -> set[Condition]:
    """The facts about a service's pods that do not depend on their owner."""
    least, wanted = 0.0, 1
    if (version := service.version) is not None:
        wanted = version.replicas if version.mode == "replicated" else 1
        try:
            least = min_healthy_time(await context.manifests.get(version.manifest), version)
        except (NotFound, RecordInvalid):
            return set()
    pods: list[PodState] = []
    for reference in service.active:
        owner = reference.partition("/")[2]
        pods += observed(context.fleet, owner, least, context.clock.mono()).values()
    available = sum(pod.available for pod in pods)
    whole = bool(pods) and available == len(pods) >= wanted
    found: set[Condition] = {"healthy"} if whole else set()
    found |= {"started"} if pods and all(pod.over or pod.reality is not None for pod in pods) else set()
    done = whole and all(
        pod.over or (isinstance(pod.reality, Glance) and pod.reality.phase == "done") for pod in pods
    )
    return found | ({"completed"} if done else set())


BACK = ".back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """One service of a deployment. ``version`` is what it should be on this turn, None: gone; ``manifest`` is
    that of its pods then.

    ``owner`` is the owner of its pods as the caches have it. ``busy``: why its pods may not change yet.
    ``hooks`` are the pods of hooks, ``leftover`` those that nobody waits for. ``goal`` is what the next steps
    are decided by.
    """

    said: deployments.Goal
    state: GoalState | None
    version: Version | None
    manifest: Manifest | None
    owner: Stored[Any] | None
    pods: Mapping[Place, PodState]
    hooks: Mapping[Place, PodState]
    goal: ServiceGoal
    leftover: tuple[Place, ...] = ()
    busy: str = ""

    @property
    def family(self) -> str:
        return self.said.owner.partition("/")[0]

    @property
    def owner_id(self) -> str:
        return self.said.owner.partition("/")[2]

    @property
    def over(self) -> bool:
        """Whether this deployment has nothing to do with it any more."""
        return bool(self.said.superseded) or (self.state is not None and self.state.phase == "released")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A deployment and its world. ``sights`` by the service's name.

    ``planned`` is the plan of all of it while nothing is taken yet, ``unplanned`` why there is none.
    ``frozen`` is the evidence of a freeze that holds it, ``idle`` how long its record has not changed, and
    ``after`` the seconds until time alone changes what is decided.
    """

    stored: Stored[Deployment]
    state: DeploymentState
    sights: Mapping[str, ServiceFacts] = field(default_factory=dict)
    shot: Snapshot | None = None
    planned: ProjectPlan | None = None
    unplanned: str = ""
    frozen: str | None = None
    idle: float = 0.0
    after: float | None = None

    @property
    def paused(self) -> bool:
        """Whether it waits for a person."""
        return paused(self.stored.record, self.state)


def mark(deployment: str, state: GoalState | None) -> str:
    """The label of the pods that a deployment places on its present turn."""
    return deployment + BACK if state is not None and state.back else deployment


def turned(said: deployments.Goal, state: GoalState | None) -> Version | None:
    """What a service should be on its present turn; None: gone."""
    return said.previous if state is not None and state.back else said.wanted


def paused(record: Deployment, state: DeploymentState) -> bool:
    """Whether it waits for a person."""
    return record.ask == "pause" or bool(halted(record, state))


ENDED = frozenset({"exited", "failed", "done"})


class Specs:
    """The specs of versions. Equal ones are one object, because plans compare many pods with few specs."""

    def __init__(self, manifests: ManifestCache) -> None:
        self._manifests = manifests
        self._known: dict[bytes, ServiceSpec] = {}

    async def of(self, version: Version) -> ServiceSpec:
        """The spec of a version.

        Raises:
            NotFound, RecordInvalid: its manifest is gone.
        """
        key = codec.encode(version)
        if key not in self._known:
            self._known[key] = spec_of(await self._manifests.get(version.manifest), version)
        return self._known[key]

    async def standing(
        self, manifest: str, mode: Mode, likely: Sequence[Version | None]
    ) -> ServiceSpec | None:
        """The spec that a pod was placed for; None: it cannot be read."""
        known = next((each for each in likely if each is not None and each.manifest == manifest), None)
        try:
            return await self.of(known or Version(manifest=manifest, mode=mode))
        except (NotFound, RecordInvalid):
            return None


class Reader:
    """Reads for one deployment under one claim."""

    def __init__(self, item: str, context: Context) -> None:
        self._item = item
        self._context = context
        self._specs = Specs(context.manifests)
        self._watches = Attempts(context)
        self._steady = Steady(context)
        self._idle: tuple[int, float] = (0, 0.0)

    async def read(self, stored: Stored[Deployment]) -> Facts:
        """The deployment and everything that its next step rests on."""
        context, record = self._context, stored.record
        work = context.caches.work.get(context.keys.work(KIND, self._item))
        state = (work.record if work is not None else Work()).deployment or DeploymentState()
        if self._idle[0] != stored.index:
            self._idle = (stored.index, context.clock.mono())
        idle = context.clock.mono() - self._idle[1]
        if record.draft:
            return Facts(stored=stored, state=state, idle=idle)
        taken = (said.owner.partition("/") for said in record.goals if _taken(said, state))
        busy = await self._steady.waits({owner: family for family, _, owner in taken})
        sights, after, held = dict[str, ServiceFacts](), list[float | None](), set[str]()
        for said in record.goals:
            frozen = self.freezes(stored, said, state.goals.get(said.service)).evidence()
            held |= {frozen} if frozen is not None else set()
            sight, soon = await self._sight(stored, state, said, busy, frozen)
            sights[said.name] = sight
            after.append(soon)
        self._watches.keep([place for each in sights.values() for place in (*each.pods, *each.hooks)])
        cluster = self._cluster(record)
        goals = _placed(cluster, record, [each.goal for each in sights.values() if not each.said.superseded])
        planned, unplanned = None, ""
        if not state.goals:
            planned, unplanned = self._planned(record, sights)
        return Facts(
            stored=stored,
            state=state,
            sights=sights,
            shot=Snapshot(
                goals=goals,
                state=cluster,
                paused=paused(record, state),
                met=await met(context, record, state),
            ),
            planned=planned,
            unplanned=unplanned,
            frozen=min(held, default=None),
            idle=idle,
            after=earliest(*after),
        )

    def _cluster(self, record: Deployment) -> ClusterState:
        nodes, keys = self._context.caches.nodes.entries, self._context.keys
        volumes = {keys.last_part(key): node.record.volumes for key, node in nodes.items()}
        return ClusterState(self._context.fleet.view(), volumes, record.project)

    def _planned(
        self, record: Deployment, sights: Mapping[str, ServiceFacts]
    ) -> tuple[ProjectPlan | None, str]:
        """The plan of all services, as the person saw it, or why there is none."""
        goals = {name: sight.goal for name, sight in sights.items()}
        services = {name: goal.spec for name, goal in goals.items() if goal.spec is not None}
        wanted = ResolvedServices(
            services=services,
            after={name: goals[name].after for name in services},
            external=frozenset(record.external),
            together=_together(record, services.values()),
            removed=goals.keys() - services.keys(),
        )
        standing = {name: goal.service for name, goal in goals.items() if sights[name].said.previous}
        strategy = RollingStrategy(force_recreate=any(sight.said.recreate for sight in sights.values()))
        try:
            return plan_project(self._cluster(record), wanted, standing, strategy), ""
        except (NoMachine, VolumeRefused) as error:
            return None, error.message

    def freezes(self, stored: Stored[Deployment], said: deployments.Goal, state: GoalState | None) -> Freezes:
        """What may hold pods that are to go. The way back of a version that fails is the cure of mass ill
        health (R19).
        """
        guards = self._context.guards
        kinds = [guards[name] for name in (KIND, said.owner.partition("/")[0]) if name in guards]
        back = stored.record.ask == "rollback" or (state is not None and state.back)
        return Freezes(kinds, stored.index, back)

    async def _sight(
        self, stored: Stored[Deployment], work: DeploymentState, said: deployments.Goal,
        busy: Mapping[str, str], frozen: str | None,
    ) -> tuple[ServiceFacts, float | None]:  # fmt: skip
        context, state = self._context, work.goals.get(said.service)
        family, _, owner = said.owner.partition("/")
        version = turned(said, state)
        manifest = None if version is None else await context.manifests.get(version.manifest)
        mono = context.clock.mono()
        least = 0.0 if version is None or manifest is None else min_healthy_time(manifest, version)
        pods = observed(context.fleet, owner, least, mono)
        hook_pods = observed(context.fleet, said.service, 0.0, mono)
        hook = await gate.seen(
            state, hook_pods, said.wanted.pre_deploy if said.wanted else None, self._watches
        )
        judged = await self._judged(stored, said, state, manifest, pods)
        proven = [each.age for each in judged.values() if each.verdict == "proven"]
        rests = version.update.delay - min(proven) if version is not None and proven else 0.0
        goal = await self._goal(said, state, pods, judged, hook, rests=rests > 0, held=frozen is not None)
        record = context.caches.tree(FAMILIES[family]).get(context.keys.record(family, owner))
        sight = ServiceFacts(
            said=said,
            state=state,
            version=version,
            manifest=manifest,
            owner=record,
            pods=pods,
            hooks=hook_pods,
            leftover=gate.leftover(hook.status, state, hook_pods),
            goal=goal,
            busy=busy.get(owner, "") or _missing(said, state, record) or foreign(owner, pods),
        )
        after = [hook.after, *(each.after for each in judged.values())]
        return sight, earliest(*after, rests if rests > 0 else None)

    async def _judged(
        self, stored: Stored[Deployment], said: deployments.Goal, state: GoalState | None,
        manifest: Manifest | None, pods: Mapping[Place, PodState],
    ) -> dict[Place, Judgement]:  # fmt: skip
        """The gate's verdicts on the pods that this turn placed."""
        version = turned(said, state)
        if version is None or manifest is None:
            return {}
        gate, label = gate_of(manifest, version), mark(stored.record.id, state)
        return {
            place: await self._watches.judged(place, pod, gate, stored.record.resumed)
            for place, pod in sorted(pods.items())
            if pod.pod.record.labels.get(DEPLOYMENT_LABEL) == label
        }

    async def _goal(
        self, said: deployments.Goal, state: GoalState | None, pods: Mapping[Place, PodState],
        judged: Mapping[Place, Judgement], hook: gate.HookSight, *, rests: bool, held: bool,
    ) -> ServiceGoal:  # fmt: skip
        """What the next steps of a service are decided by."""
        owner = said.owner.partition("/")[2]
        mode = (said.wanted or said.previous or Version(manifest="-")).mode
        containers = list[ServicePod]()
        for place, pod in sorted(pods.items()):
            likely = (said.wanted, said.previous)
            spec = await self._specs.standing(pod.pod.record.manifest, mode, likely)
            containers.append(container(place, pod, spec, judged.get(place)))
        return ServiceGoal(
            service=StandingService(id=owner, name=said.name, mode=mode, containers=tuple(containers)),
            spec=None if said.wanted is None else await self._specs.of(said.wanted),
            previous=None if said.previous is None else await self._specs.of(said.previous),
            back=state is not None and state.back,
            taken=state is not None,
            released=state is not None and state.phase == "released",
            started=state.started if state is not None else 0,
            hook=hook.status,
            hook_failure=hook.failure,
            hook_place=gate.place_of(state),
            rests=rests,
            recreate=said.recreate,
            after=said.after,
            altered=altered(owner, pods),
            held=held,
        )


def _taken(said: deployments.Goal, state: DeploymentState) -> bool:
    """Whether the owner of a service is this deployment's alone now."""
    own = state.goals.get(said.service)
    return own is not None and own.phase == "taken" and not said.superseded


def _together(record: Deployment, specs: Iterable[ServiceSpec]) -> str:
    """The project whose services stay together; an earlier version bound each of them to a machine."""
    near = any(spec.placement.pod_affinity for spec in specs)
    return record.project if record.together and near else ""


def _placed(cluster: ClusterState, record: Deployment, goals: Sequence[ServiceGoal]) -> list[ServiceGoal]:
    """The goals with the machine of their project, where it stays together and some machine suits it."""
    specs = {each.service.name: each.wanted for each in goals if each.wanted is not None}
    if not (together := _together(record, specs.values())):
        return list(goals)
    wanted = ResolvedServices(services=specs, external=frozenset(record.external), together=together)
    try:
        machines = scheduled(cluster, wanted, {each.service.name: each.service for each in goals}).machines
    except (NoMachine, VolumeRefused):
        return list(goals)  # each service then says by itself why no machine takes it
    return [dataclasses.replace(each, machines=machines.get(each.service.name)) for each in goals]


def _missing(said: deployments.Goal, state: GoalState | None, owner: Stored[Any] | None) -> str:
    """An owner that somebody deleted although a deployment has it, as text."""
    kept = state is not None and state.phase == "taken" and turned(said, state) is not None
    return f"{said.owner} is gone" if kept and owner is None else ""


def container(place: Place, pod: PodState, spec: ServiceSpec | None, mine: Judgement | None) -> ServicePod:
    """One pod as plans see it; ``mine`` is the gate's judgement of one that this turn placed.

    A pod from before serves once it is healthy: a farm that just began has not seen it for long, nor for as
    long as another version asks.
    """
    seen = pod.reality if isinstance(pod.reality, Glance) else None
    acted = pod.intent is not None and seen is not None and seen.intent >= pod.intent.index
    own = seen if acted and seen is not None and seen.manifest == pod.pod.record.manifest else None
    return ServicePod(
        place=place,
        spec=spec,
        running=own is None or own.phase not in ENDED or pod.healthy,
        done=pod.over or (own is not None and own.phase == "done"),
        failing=own is not None and own.state == "critical" and not pod.absent,
        mine=mine is not None,
        available=pod.healthy if mine is None else pod.available,
        proven=mine is not None and mine.verdict == "proven",
        failed=mine.reason if mine is not None and mine.verdict == "failed" else "",
        refused=mine.reason if mine is not None and mine.verdict == "unproven" else "",
    )
