"""The node agent: wires its parts and runs their loops.

Losing the store, a bug in one loop or the end of the agent touches no workload (R27). The agent ends only
when it is told to stop, or when another agent holds the node's presence or the state directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

import structlog

from farmd.agent.access_records import AccessRecords
from farmd.agent.artifacts.cache import Artifacts
from farmd.agent.endpoints import Endpoints
from farmd.agent.errors import AgentError
from farmd.agent.forwarding.forwarder import Forwarder
from farmd.agent.intents import Intents
from farmd.agent.lease import Leases
from farmd.agent.leaving import Leaves
from farmd.agent.lifecycle import Lifecycle
from farmd.agent.link import Contact, Link
from farmd.agent.logs import Gone
from farmd.agent.manifests import Manifests
from farmd.agent.model import AgentConfig, ContainerConfig, SigningConfig, SystemdConfig
from farmd.agent.pods import Pods
from farmd.agent.ports import PortRange
from farmd.agent.reality import RealityWriter
from farmd.agent.rendering import Renderer
from farmd.agent.runtimes.process import Processes
from farmd.agent.runtimes.runtime import Runtime, Runtimes
from farmd.agent.secrets import Secrets
from farmd.agent.state import StateDirectory
from farmd.agent.supervisor import Supervisor
from farmd.agent.templates import Templates
from farmd.agent.usage import OwnerSums, Usages
from farmd.agent.watcher import Checker, HealthWatcher
from farmd.observe.progress import Progress
from farmd.runtime import tasks
from farmd.runtime.wake import within
from store import features
from store.consul.client import ConsulClient
from store.keys import Keys, valid_segment
from store.ports import Clock, Ids, Recorder, Rng
from store.reality import Reality
from store.watch import LOOK_SECONDS, Leadership

if TYPE_CHECKING:
    from farmd.agent.admission import Admission

log = structlog.get_logger()

RESTART_LOOP_SECONDS = 1.0
QUIET_LOOK_SECONDS = 0.05
# An agent that stops its workloads waits this much longer than the longest time that one has to end.
STOP_SECONDS = 10.0
# How long an agent that starts waits for the store's revocations before it starts pods without them.
HEARD_SECONDS = 5.0


class Agent:
    """One node's agent. Workloads get only a few variables of ``environ``.

    ``container``: the engine for containers, if the node has one; ``systemd``: the same for units;
    ``runtimes`` are still others. ``signing``: whose word a start needs; None: nobody's. ``denied``: what its
    token lacks.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        client: ConsulClient,
        keys: Keys,
        clock: Clock,
        rng: Rng,
        ids: Ids,
        recorder: Recorder,
        progress: Progress,
        environ: Mapping[str, str],
        container: ContainerConfig | None = None,
        systemd: SystemdConfig | None = None,
        signing: SigningConfig | None = None,
        runtimes: Sequence[Runtime] = (),
        denied: Callable[[], str] = str,
    ) -> None:
        valid_segment(config.node, "node")
        self.config = config
        self.state = StateDirectory(config.state_dir)
        self._clock = clock
        self._leadership = Leadership(client, clock)
        self._progress = progress
        self._wake = asyncio.Event()
        self._checker = Checker(config.check_host)
        self._leases = leases = Leases()
        self._contact = Contact(clock, self.state, config.session_ttl / 2, leases)
        given = (self.state, config, environ, clock, recorder, leases)
        self._artifacts = Artifacts(
            config.artifacts,
            state=self.state,
            users=config.users,
            environ=environ,
            clock=clock,
            recorder=recorder,
        )
        self._endpoints = Endpoints(client, keys, clock, rng, config.farm_ca)
        self.runtimes = Runtimes(
            Processes(self.state, config.node, environ, clock, config.users, leases, config.cgroup),
            *([] if container is None else [_containers(container, *given)]),
            *([] if systemd is None else [_units(systemd, *given)]),
            *runtimes,
            artifacts=self._artifacts,
            secrets=Secrets(config.secrets),
            renderer=(renderer := Renderer(config.node, self.state, self._endpoints, environ)),
        )
        self._templates = Templates(
            renderer=renderer,
            runtimes=self.runtimes,
            state=self.state,
            clock=clock,
            rng=rng,
            wake=self._wake.set,
        )
        able = [
            *(features.JOBS, features.ADDRESS, features.LEAVING, features.RESTART_AFTER, features.LOGS),
            *(features.INIT, features.AFTER_STOP, features.SIDECARS, features.USAGE),
            *([features.ACCESS] if config.asks_for_keys else []),
            *([features.EXEC] if config.exec else []),
            *([] if signing is None else [f"{features.SIGNATURES}{signing.policy}", features.BOUND]),
        ]
        admission = self._admission = (
            None
            if signing is None
            else _admission(
                signing,
                node=config.node,
                client=client,
                keys=keys,
                state=self.state,
                clock=clock,
                rng=rng,
                progress=progress,
                cluster=lambda: self._link.identity.cluster,
            )
        )
        manifests = Manifests(client, keys, self.state)
        self.gone = Gone(self.state, clock)
        enforced = signing is not None and signing.policy == "enforce"
        self.pods = Pods(
            state=self.state, manifests=manifests, clock=clock, recorder=recorder, enforced=enforced
        )
        self._link = Link(
            config,
            client=client,
            keys=keys,
            state=self.state,
            contact=self._contact,
            clock=clock,
            rng=rng,
            recorder=recorder,
            any_workloads=self.pods.any_workloads,
            acted_on=self.pods.acted_on,
            features=lambda: [*self.runtimes.features(), *able],
            doubts=self.runtimes.doubts,
            trusts=lambda: None if admission is None else admission.trusts(),
            closed=lambda: self._intents.closed or self.state.closed,
            left=lambda: self.state.left,
            denied=denied,
            look=lambda: self._intents.look(),  # noqa: PLW0108 - they are made after the link
        )
        self._reality = RealityWriter(
            config.node,
            client=client,
            keys=keys,
            link=self._link,
            clock=clock,
            rng=rng,
            progress=progress,
            obeyed=lambda: self._intents.obeyed,
        )
        self._intents = Intents(
            config,
            client=client,
            keys=keys,
            link=self._link,
            manifests=manifests,
            pods=self.pods,
            clock=clock,
            rng=rng,
            recorder=recorder,
            progress=progress,
            wake=self._wake.set,
            doubt=self._doubt,
            preflight=self.runtimes.preflight,
            admission=admission,
        )
        self.access_records = AccessRecords(client, keys, config.node, clock, self._link.present)
        self.usages = Usages(
            config.node,
            clock,
            lambda: self.pods,
            recorder if config.pod_metrics else None,
            OwnerSums(recorder, config.owner_metrics, clock.now()) if config.owner_metrics else None,
        )
        self.forwarder = Forwarder(
            self.state,
            config.node,
            lambda: self.pods,
            clock,
            recorder,
            default=config.log_to,
            hosts=config.log_hosts,
            authorities=config.log_ca,
        )
        self._supervisor = self._supervising(manifests, rng, ids, recorder)
        if admission is not None:
            admission.revocations.news = self._revoked

    def _supervising(self, manifests: Manifests, rng: Rng, ids: Ids, recorder: Recorder) -> Supervisor:
        ports = PortRange(*self.config.port_range, rng)
        health = HealthWatcher(
            runtimes=self.runtimes,
            checker=self._checker,
            state=self.state,
            manifests=manifests,
            clock=self._clock,
            rng=rng,
            recorder=recorder,
            progress=self._progress,
            wake=self._wake.set,
        )
        lifecycle = Lifecycle(
            pods=self.pods,
            state=self.state,
            gone=self.gone,
            last_words=self.forwarder.ending,
            runtimes=self.runtimes,
            ports=ports,
            health=health,
            leaves=Leaves(
                runtimes=self.runtimes,
                clock=self._clock,
                told=lambda instance: self._reality.told(instance, "stopping"),
                wake=self._wake.set,
            ),
            templates=self._templates,
            clock=self._clock,
            ids=ids,
            recorder=recorder,
            wake=self._wake.set,
        )
        return Supervisor(
            pods=self.pods,
            lifecycle=lifecycle,
            state=self.state,
            runtimes=self.runtimes,
            ports=ports,
            health=health,
            contact=self._contact,
            clock=self._clock,
            recorder=recorder,
            progress=self._progress,
            wake=self._wake,
            reports=self._reality.tell,
            unconfirmed=self._intents.judge_again,
        )

    def _woken(self) -> None:
        """Act on what a runtime learnt, and announce what it can do and tell now."""
        self._wake.set()
        if self._link.changed:
            self._link.doubt()

    def _doubt(self) -> None:
        """Check this node's own records, because the store may have been restored from a snapshot."""
        self._link.doubt()
        self._reality.doubt()

    def _revoked(self, digests: Set[str]) -> None:
        """Start nothing of these manifests, whose signatures people revoked, before it is judged again."""
        self.pods.withhold(digests)
        self._intents.judge_again()

    async def _supervise(self) -> None:
        """Run the supervisor once the revocations are known; a silent store delays it by seconds only."""
        if self._admission is not None:
            await within(self._admission.revocations.heard.wait(), self._clock, HEARD_SECONDS)
        await self._supervisor.run()

    @property
    def cluster(self) -> str:
        """The id of the cluster that this agent belongs to; empty: of none yet."""
        return self._link.identity.cluster

    def lacks(self) -> str:
        """Why this agent does not hold the node's presence in the store; empty: it does."""
        return self._link.lacks()

    def reality(self) -> Mapping[str, Reality]:
        """The reality records of all pods, by instance."""
        now = self._clock.mono()
        return {pod.instance: pod.report(now) for pod in self.pods}

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set.

        Raises:
            StateLocked: another agent uses the state directory.
            StateInvalid: the directory belongs to another node, or cannot be used.
            NodeTaken: a live agent elsewhere has this node's name.
        """
        with self.state.locked(self.config.node) as identity:
            self._link.identity = identity
            self._contact.load()
            try:
                await self._supervisor.adopt()
                log.info("agent.started", node=self.config.node, pods=len(self.pods))
                await self._run_loops(stop)
            finally:
                await self._supervisor.leave()
                self.runtimes.secrets.leave()
                for runtime in self.runtimes:
                    await runtime.close()
                await self._artifacts.close()
                await self._templates.close()
                await self._endpoints.close()
                await self._checker.close()
                self._leases.close()
            stopped = self.config.stop_workloads_on_exit
            log.info(
                "agent.stopped",
                node=self.config.node,
                workloads="told to stop" if stopped else "left as they are",
            )

    async def _run_loops(self, stop: asyncio.Event) -> None:
        supervisor = asyncio.create_task(self._kept_up("supervisor", self._supervise))
        others = [
            asyncio.create_task(self._kept_up("link", self._link.run)),
            asyncio.create_task(self._kept_up("intents", self._intents.run)),
            asyncio.create_task(self._kept_up("reality", self._reality.run)),
            asyncio.create_task(self._kept_up("leader", self._follow_leader)),
            asyncio.create_task(self._kept_up("usage", self.usages.run)),
            asyncio.create_task(self._kept_up("logs", self.forwarder.run)),
            *(
                [asyncio.create_task(self._kept_up("access", self.access_records.run))]
                if self.config.exec
                else []
            ),
            *(
                [asyncio.create_task(self._kept_up("revocations", self._admission.revocations.run))]
                if self._admission is not None
                else []
            ),
            *(
                asyncio.create_task(self._kept_up(each.name, partial(each.run, self._woken)))
                for each in self.runtimes
            ),
        ]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopping, supervisor, *others], return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set() and self.config.stop_workloads_on_exit:
                await self._stop_workloads(others[1])
        finally:
            for task in (stopping, *others, supervisor):
                task.cancel()
            done = await asyncio.gather(supervisor, *others, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, AgentError):
                raise outcome

    async def _stop_workloads(self, intents: asyncio.Task[None]) -> None:
        """Stop all workloads and wait for their ends, but not for ever: a runtime may be silent."""
        intents.cancel()
        until = self._clock.mono() + self._supervisor.stop_all() + STOP_SECONDS
        while left := self._supervisor.left():
            if self._clock.mono() >= until:
                log.warning("workloads.left", count=len(left), workloads=left)
                return
            await self._clock.sleep(QUIET_LOOK_SECONDS)

    async def _follow_leader(self) -> None:
        with self._progress.loop("leader", LOOK_SECONDS * 12) as loop:
            await self._leadership.run(loop.beat)

    async def _kept_up(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """The error boundary of one loop: log a bug in the loop and start the loop again."""
        while True:
            try:
                await run()
            except AgentError:
                raise
            except (Exception, asyncio.CancelledError):
                if tasks.cancelled():
                    raise
                log.exception("agent.loop_failed", loop=name)
                await self._clock.sleep(RESTART_LOOP_SECONDS)


def _containers(
    container: ContainerConfig, state: StateDirectory, config: AgentConfig, environ: Mapping[str, str],
    clock: Clock, recorder: Recorder, leases: Leases,
) -> Runtime:  # fmt: skip
    """The runtime of containers, imported only where there is an engine."""
    from farmd.agent.runtimes.container import Containers

    return Containers(
        container, state=state, node=config.node, clock=clock, recorder=recorder, leases=leases,
        environ=environ,
    )  # fmt: skip


def _admission(
    config: SigningConfig, *, node: str, client: ConsulClient, keys: Keys, state: StateDirectory,
    clock: Clock, rng: Rng, progress: Progress, cluster: Callable[[], str],
) -> Admission:  # fmt: skip
    """What judges signatures, imported only where signatures are asked for."""
    from farmd.agent.admission import Admission
    from farmd.agent.revocations import Revocations

    revocations = Revocations(client=client, keys=keys, state=state, clock=clock, rng=rng, progress=progress)
    return Admission(
        config=config,
        node=node,
        client=client,
        keys=keys,
        clock=clock,
        cluster=cluster,
        revocations=revocations,
    )


def _units(
    systemd: SystemdConfig, state: StateDirectory, config: AgentConfig, environ: Mapping[str, str],
    clock: Clock, recorder: Recorder, leases: Leases,
) -> Runtime:  # fmt: skip
    """The runtime of systemd's units, imported only where it is wanted."""
    from farmd.agent.runtimes.systemd import Units

    return Units(
        systemd, state=state, node=config.node, environ=environ, clock=clock, recorder=recorder,
        users=config.users, leases=leases,
    )  # fmt: skip
