"""A deployment from a person's wish to its end (uncloud ``client.deploy.Deployment``).

``plan`` reads and plans once, and writes nothing; ``run`` submits the plan and waits for the end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from farmd.commands.mutation import Call, Mutation, registered
from farmd.commands.parts import refuse_part
from farmd.commands.waiting import Report
from farmd.deploy import submission, waiting
from farmd.deploy.fingerprint import fingerprint
from farmd.deploy.goals import Aim, aims
from farmd.deploy.holders import refuse_foreign, unless_held
from farmd.deploy.images import pinned
from farmd.deploy.ports import ImageResolverClient
from farmd.deploy.project import ProjectPlan, ResolvedServices, plan_project
from farmd.deploy.reader import Scene, read
from farmd.deploy.strategy import RollingStrategy
from farmd.overview.owners import NOT_YET, farms, why_unowned
from farmd.runtime.errors import FarmdError
from scheduler.cluster import ClusterState
from scheduler.errors import SchedulerError
from store import deployments
from store.errors import Conflict
from store.services import KIND as SERVICE


@dataclass(slots=True, kw_only=True)
class Deployment:
    """Services of a project on their way; what was planned is submitted once, and run once.

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
        """Plan from what stands now; later calls return the same plan.

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
        """What was planned last as one mutation, for whoever commits it with others.

        Raises:
            Locked: another deployment changes one of the services.
        """
        return await submission.at_once(self.call, self._prepared())

    async def run(self, timeout: float, report: Report) -> ProjectPlan:
        """Plan and submit, where that was not done, and wait for the end; the plan that was carried out.

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
        await waiting.end(self.call, self.submitted.change, timeout, report)
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
