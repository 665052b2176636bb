"""The commands of people on services and deployments, and the view of a deployment in progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec.structs import replace as replaced

from farmd import overview
from farmd.commands import waiting
from farmd.commands.mutation import Call, Change, Mutation, registered
from farmd.commands.parts import refuse_part
from farmd.commands.specs import check_count
from farmd.commands.waiting import Look, Report, fitting
from farmd.deploy import submission, view
from farmd.deploy.goals import Aim, aims
from farmd.deploy.images import pinned
from farmd.deploy.manifest import spec_of
from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.project import ProjectPlan, ResolvedServices, fingerprint, plan_project
from farmd.deploy.protocols import ImageResolverClient
from farmd.deploy.scene import Scene, read, refuse_foreign, state_of, unless_held
from farmd.deploy.spec import ServiceSpec
from farmd.deploy.strategy import RollingStrategy
from farmd.deploy.view import Pulls
from farmd.overview import titled_or_not
from farmd.overview.owners import NOT_YET, farms, why_unowned
from farmd.runtime.errors import EndedOtherwise, FarmdError, Stale, WaitTimeout
from scheduler.cluster import ClusterState
from scheduler.errors import SchedulerError
from store import deployments, manifests
from store.audit import Audit, AuditReader, Filter
from store.deployments import FAILED, KIND, halted
from store.deployments import Deployment as DeploymentRecord
from store.entry import Stored
from store.errors import Conflict, InputInvalid, NotFound
from store.services import KIND as SERVICE
from store.services import KIND as SERVICES
from store.services import NOUN, Revision, Service, ServiceStore, Version

# What people say of a deployment while it lasts.
#
# A word is a compare-and-set of the record, which every transaction of the worker names: what was planned
# before the word is refused (R12, R13).


async def pause(call: Call, target: str) -> Mutation:
    """Pause it where it is: no pod is added, removed or repaired."""
    return _said(call, await DEPLOYMENT.find(call, target), "pause", ask="pause")


async def resume(call: Call, target: str) -> Mutation:
    """Continue after a pause, or try again after a failure that halted it."""
    stored = await DEPLOYMENT.find(call, target)
    record = stored.record
    ask = "run" if record.ask == "pause" else record.ask
    return _said(call, stored, "resume", ask=ask, resumed=record.resumed + 1)


async def rollback(call: Call, target: str) -> Mutation:
    """Roll back each service that has changed to its previous version."""
    return _said(call, await DEPLOYMENT.find(call, target), "rollback", ask="rollback")


def _said(call: Call, stored: Stored[DeploymentRecord], word: str, **fields: Any) -> Mutation:
    record = stored.record
    if record.draft:
        raise Conflict(f"deployment {record.name!r} is submitted right now", id=record.id, hint="try again")
    return DEPLOYMENT.command(call, stored, word, destructive=word == "rollback", **fields)


# Waiting for the end of a deployment, with its progress.

ASKED = {"deployment.rollback": "reverted"}
"""How a deployment ends if it ends as was asked; otherwise it is done."""
ENDINGS = ("done", "reverted", "stale", "abandoned")
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """The progress of each service and of the whole deployment. ``over``: it is gone. ``halted``: why it
    waits for a person. ``failed``: the place of the pod that failed.
    """

    services: dict[str, str]
    record: DeploymentRecord | None = None
    reason: str = ""
    over: bool = False
    halted: str = ""
    failed: str = ""
    lines: tuple[str, ...] = ()


async def end(call: Call, change: Change, timeout: float, report: Report) -> None:
    """Wait until a deployment ends as the change asked: done or reverted.

    Raises:
        Stale: it did not begin, because the plan had changed.
        EndedOtherwise: it ended in another way, or waits for a person after a failure.
        WaitTimeout: it is not over; it goes on.
    """
    began, last, pulls = call.clock.now(), DeploymentView({}), Pulls(call)

    def show(now: DeploymentView) -> None:
        nonlocal last
        for name, text in {**now.services, "": now.reason}.items():
            if text and text != (last.services.get(name) if name else last.reason):
                report(_look(change, name, text, now))
        last = last if now.over else now

    async def late(now: DeploymentView) -> WaitTimeout:
        told = "; ".join(f"{name} {text}" for name, text in now.services.items())
        return WaitTimeout(
            f"deployment {change.name!r} is not over after {timeout:g} s: {told or now.reason}",
            hint=f"it continues; see farmctl deployment status {change.name}",
        )

    def settled(now: DeploymentView, _: float) -> bool:
        return now.over or bool(now.halted)

    found = await waiting.until(call, lambda: _sight(call, change, pulls), settled, late, timeout, show)
    if found.halted:
        raise EndedOtherwise(
            f"deployment {change.name!r} waits for a person: {found.halted}",
            hint=f"farmctl deployment resume|rollback {change.name}",
            failed=_places(found.failed),
        )
    over = await ended(call, change.id, since=began - HOUR)
    ending = over.action.partition(".")[2]
    if last.record is not None and ending == "done":
        told = {goal.name: view.done(goal, last.services[goal.name]) for goal in last.record.goals}
        show(replace(last, services=told, reason="", lines=tuple(view.drawn(last.record, told, ending))))
    if ending == ASKED.get(change.action, "done"):
        if ending != "done":
            report(_look(change, "", _words(ending), replace(last, lines=())))
        return
    kind = Stale if ending == "stale" else EndedOtherwise
    why = f": {over.reason}" if over.reason else ""
    raise kind(
        f"deployment {change.name!r} was {_words(ending)}{why}",
        hint=f"farmctl audit list --item {change.name}",
        failed=_places(str((over.after or {}).get(FAILED, ""))),
    )


async def ended(call: Call, ident: str, since: float = 0.0) -> Audit:
    """The end of a deployment, from the audit log.

    Raises:
        NotFound: it does not.
    """
    reader = AuditReader(call.client, call.keys)
    for record in await reader.read(Filter(kind=KIND, item=ident, since=since), 8):
        if record.action.partition(".")[2] in ENDINGS:
            return record
    raise NotFound(
        f"deployment {ident!r} no longer exists, and the audit log has no record of its end", id=ident
    )


async def _sight(call: Call, change: Change, pulls: Pulls) -> DeploymentView:
    try:
        records = DEPLOYMENT.records(call.client, call.keys)
        row: overview.Row[DeploymentRecord] = await overview.row(call.client, call.keys, records, change.id)
    except NotFound:
        return DeploymentView({}, over=True)
    doing = await pulls.of(row.record, row.status)
    told = view.lines(row.record, row.status, row.state, row.reason, doing)
    state = await state_of(call, change.id)
    why = halted(row.record, state)
    failed = state.failed if state is not None and why else ""
    reason = view.besides(row.status, row.news)
    # In a pipe each other text is a line of its own, so amounts are shown on a terminal alone.
    services = view.services(row.record, row.status, await pulls.of(row.record, row.status, exact=False))
    return DeploymentView(services, row.record, reason, halted=why, failed=failed, lines=tuple(told))


def _look(change: Change, name: str, text: str, now: DeploymentView) -> Look:
    """A look for the progress: of a service, or of the whole where it has no name."""
    noun, title = ("service", name) if name else ("deployment", change.name)
    draw = (lambda width: fitting(now.lines, width)) if now.lines else None
    return Look(noun=noun, name=title, state=text, desired=0, counts=False, draw=draw)


def _places(said: str) -> list[list[str]]:
    """Node and instance of each of some places."""
    return [place.split("/") for place in said.split()]


def _words(ending: str) -> str:
    return "rolled back" if ending == "reverted" else ending


# A deployment from a person's wish to its end (uncloud ``client.deploy.Deployment``).
#
# ``plan`` reads and plans once, and writes nothing; ``run`` submits the plan and waits for the end.


@dataclass(slots=True, kw_only=True)
class Deployment:
    """A deployment of a project's services. Its plan is submitted once and run once.

    ``fields`` are those of the services' files that change; None: any.
    ``images`` tells the digests to which images are pinned; None: they stay as they are. ``scene`` is what
    was read for the last plan, ``aims`` are its goals, ``remarks`` and ``warnings`` lines for people.
    """

    call: Call
    wanted: ResolvedServices
    project: str = ""
    recreate: bool = False
    atomic: bool = False
    fields: Collection[str] | None = None
    images: ImageResolverClient | None = None
    scene: Scene = field(init=False)
    made: ProjectPlan = field(init=False)
    aims: list[Aim] = field(init=False, default_factory=list)
    remarks: list[str] = field(init=False, default_factory=list)
    warnings: list[str] = field(init=False, default_factory=list)
    submitted: submission.Submission | None = field(init=False, default=None)
    _id: str = field(init=False)
    _has_plan: bool = field(init=False, default=False)
    _ran: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._id = self.call.ids.new()

    async def plan(self) -> ProjectPlan:
        """Plan from the present state; later calls return the same plan.

        Raises:
            Conflict: a service of others or of an app, or a service or a volume that finds no machine.
        """
        if self._has_plan:
            return self.made
        await registered(self.call)  # else a wrong token would look like a fleet without machines
        names = {*self.wanted.services, *self.wanted.removed}
        self.scene = await read(self.call, names, self.project)
        refuse_foreign(self.scene, names, self.project)
        for name in sorted(names & self.scene.records.keys()):
            await refuse_part(self.call, SERVICE, self.scene.records[name].record, self.fields)
        if self.images is not None:
            services, self.warnings = await pinned(self.wanted.services, self.images, self.scene.services)
            self.wanted = replace(self.wanted, services=services)
        return self._planned()

    def refuse_held(self) -> None:
        """Refuse what ``submit`` would refuse, by what was read for the plan.

        Raises:
            Locked: another deployment changes one of the services.
        """
        unless_held(self.call, self.scene, [aim.goal.name for aim in self.aims])

    async def submit(self) -> Mutation:
        """Write what was planned last, for the farms to carry out.

        Raises:
            Locked: another deployment changes one of the services. Conflict: one of them was changed.
            FarmdError: it was submitted already.
        """
        if self.submitted is not None:
            raise FarmdError(f"deployment {self._id!r} was submitted already, expected a new one")
        self.submitted = self._prepared()
        return await submission.submit(self.call, self.submitted)

    async def mutation(self) -> Mutation:
        """What was planned last as one mutation, for a caller that commits it with others.

        Raises:
            Locked: another deployment changes one of the services.
        """
        return await submission.at_once(self.call, self._prepared())

    async def run(self, timeout: float, report: Report) -> ProjectPlan:
        """Plan and submit if that was not done, and wait for the end. Returns the plan that was carried out.

        Raises:
            Conflict: it cannot be planned, as in ``plan``.
            EndedOtherwise: it failed and was rolled back, or what stands had changed before it began.
            WaitTimeout: it is not over; it goes on.
            FarmdError: it was run already.
        """
        if self._ran:
            raise FarmdError(f"deployment {self._id!r} was run already, expected a new one")
        self._ran = True
        await self.plan()
        if self.submitted is None:
            await self.submit()
        assert self.submitted is not None
        await end(self.call, self.submitted.change, timeout, report)
        return self.made

    async def idle(self) -> str:
        """Why no farm will carry out what was submitted as things are; empty if one may."""
        assert self.submitted is not None
        members = await farms(self.call.client, self.call.keys)
        why = why_unowned(deployments.KIND, self.submitted.deployment, members)
        return "" if why == NOT_YET else why

    @property
    def left(self) -> list[str]:
        """The services of the project that are not wanted."""
        known = {*self.wanted.services, *self.wanted.removed}
        mine = self.scene.records if self.project else {}
        return sorted(name for name, each in mine.items() if each.record.mode and name not in known)

    def remove(self, names: Collection[str]) -> ProjectPlan:
        """Plan also that these services go."""
        self.wanted = replace(self.wanted, removed=names)
        return self._planned()

    def _prepared(self) -> submission.Submission:
        return submission.prepared(self.call, self._record(), self.aims, self.scene)

    def _record(self) -> deployments.Deployment:
        return deployments.Deployment(
            id=self._id,
            name=self._id[:8],
            goals=[],
            project=self.project,
            together=bool(self.wanted.together),
            external=sorted(self.wanted.external),
            fingerprint=fingerprint(self.made),
            atomic=self.atomic,
        )

    def _planned(self) -> ProjectPlan:
        state = ClusterState(self.scene.view, self.scene.volumes, seed=self.project)
        strategy = RollingStrategy(force_recreate=self.recreate)
        try:
            self.made = plan_project(state, self.wanted, self.scene.services, strategy)
        except SchedulerError as error:
            raise Conflict(error.message, **error.fields) from error
        self._has_plan = True
        self.aims = aims(self.made, self.wanted, self.scene, self.call.ids, recreate=self.recreate)
        return self.made


# Changes of single services that stand: each is a deployment, too.


async def scaled(call: Call, target: str, replicas: int) -> Deployment:
    """A service with another number of pods.

    Raises:
        InputInvalid: no number that can be, or a global service. Conflict: no deployment made it.
    """
    check_count(replicas, "replicas")
    service = (await deployed(call, target, "scaled", f"set-replicas NAME {replicas}")).record
    if service.mode == "global":
        raise InputInvalid(
            f"{NOUN} {service.name!r} is global: it has a pod on each machine, expected a replicated one",
            field="replicas",
        )
    return await _changed(call, service, lambda spec: replaced(spec, replicas=replicas), fields={"replicas"})


async def rolled_back(call: Call, target: str, revision: int | None = None) -> Deployment:
    """A service as it was at a revision; None: at the last good one before the present.

    Raises:
        NotFound: its history has no such revision. Conflict: no deployment made it.
    """
    service = (await deployed(call, target, "rolled back", "")).record
    found = _revision(service, revision)
    return await _changed(call, service, lambda _: None, found.version)


async def removed(call: Call, services: Sequence[Service]) -> Deployment:
    """Services of one project that go, with their pods."""
    names = [each.name for each in services]
    made = Deployment(
        call=call, wanted=ResolvedServices(services={}, removed=names), project=services[0].project
    )
    await made.plan()
    return made


async def unused(call: Call, name: str) -> None:
    """Refuse the name of a service that exists.

    Raises:
        Conflict: it does.
    """
    found, _ = await ServiceStore(call.client, call.keys).named(name)
    if found is not None and (found.record.version is not None or found.record.active):
        raise Conflict(
            f"{NOUN} {name!r} exists",
            id=found.record.id,
            hint=f"farmctl deploy changes it, farmctl {NOUN} scale {name} N its count",
        )


async def deployed(call: Call, target: str, word: str, instead: str) -> Stored[Service]:
    """A service that a deployment made.

    Raises:
        NotFound: there is none. Conflict: people made it for owners of their own.
    """
    stored = await ServiceStore(call.client, call.keys).find(target)
    record = stored.record
    if record.mode and record.version is not None:
        return stored
    if record.mode:
        raise Conflict(
            f"{NOUN} {record.name!r} was never fully deployed, so it cannot be {word}",
            id=record.id,
            hint="farmctl deployment list shows what is under way",
        )
    owners = (
        ", ".join([await titled_or_not(call.client, call.keys, ref) for ref in record.active]) or "no owner"
    )
    raise Conflict(
        f"{NOUN} {record.name!r} is a name for the pods of {owners}, which no deployment made: it cannot be"
        f" {word}",
        id=record.id,
        hint=f"farmctl rc {instead}" if instead else "change its owners instead",
    )


async def spec_now(call: Call, service: Service) -> ServiceSpec:
    """What a service was deployed as.

    Raises:
        NotFound: its manifest is gone.
    """
    assert service.version is not None
    spec = spec_of(await manifests.read(call.client, call.keys, service.version.manifest), service.version)
    return replaced(spec, name=service.name)


async def edited(
    call: Call, stored: Stored[Service], spec: ServiceSpec, images: ImageResolverClient | None
) -> Deployment:
    """A service as a person made it of the version that was read.

    Raises:
        Conflict: somebody changed it since.
    """
    service = stored.record
    made = Deployment(
        call=call,
        wanted=ResolvedServices(services={service.name: spec}),
        project=service.project,
        images=images,
    )
    await made.plan()
    now = made.scene.records.get(service.name)
    if now is None or now.index != stored.index:
        raise Conflict(f"{NOUN} {service.name!r} was changed since it was read; nothing was written")
    return made


def _revision(service: Service, number: int | None) -> Revision:
    known = ", ".join(str(each.number) for each in service.history) or "none"
    for each in service.history:
        good = each.result == "done" and each.number < service.revision
        if each.number == number or (number is None and good):
            return each
    wanted = f"revision {number}" if number is not None else f"good revision before {service.revision}"
    raise NotFound(
        f"{NOUN} {service.name!r} has no {wanted}, found: {known}",
        kind=SERVICES,
        id=service.id,
        hint=f"farmctl {NOUN} history {service.name}",
    )


async def _changed(
    call: Call,
    service: Service,
    change: Callable[[ServiceSpec], ServiceSpec | None],
    version: Version | None = None,
    fields: Collection[str] | None = None,
) -> Deployment:
    """The deployment of a service as it is, or as a version, with a change, of ``fields`` or of any."""
    kept = version or service.version
    assert kept is not None
    spec = spec_of(await manifests.read(call.client, call.keys, kept.manifest), kept)
    restored = frozenset({service.name} if version is not None else ())
    wanted = ResolvedServices(services={service.name: change(spec) or spec}, restored=restored)
    made = Deployment(call=call, wanted=wanted, project=service.project, fields=fields)
    await made.plan()
    return made
