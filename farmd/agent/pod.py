"""One pod in the agent's memory: its record, process and health, and its reality record."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from farmd.agent.errors import AgentError
from farmd.agent.exits import Stages
from farmd.agent.health import Damper, Spell
from farmd.agent.log_files import trouble
from farmd.agent.model import EXITS_KEPT, Identity, Record
from farmd.agent.plan import TELL_SECONDS, TOLD_SECONDS, Situation, backoff, ends_for_good, failures_after
from farmd.agent.runtimes.runtime import Runtimes
from store.manifests import Manifest, Restart
from store.ports import Clock
from store.reality import Exit, Health, Phase, Reality, ending

# What gets ready for a start while the former workload still serves: images, volumes, files.
#
# A failure is tried again with the backoff of the manifest's restarts; until then the former workload
# stays.

log = structlog.get_logger()

AFTER = ("sidecars", "after_stop", "over")


@dataclass(slots=True, eq=False)
class Preparation:
    """The preparation of one manifest on one pod. ``problem``: why the last try failed; ``not_before`` is
    monotonic.

    ``doing``: what is under way, for people; ``wake`` is called when it changed.
    """

    sha: str
    wake: Callable[[], None]
    task: asyncio.Task[None] | None = None
    done: bool = False
    failures: int = 0
    problem: str = ""
    doing: str = ""
    not_before: float = -math.inf

    def tell(self, what: str) -> None:
        """Tell people what is under way; nothing if empty."""
        self.doing = what
        self.wake()

    def abandon(self) -> None:
        """Stop, because another manifest is wanted now, or none."""
        if self.task is not None:
            self.task.cancel()

    async def run(
        self, runtimes: Runtimes, instance: str, manifest: Manifest, clock: Clock, *, kept: bool
    ) -> None:
        """One try, and its error boundary: the former workload stays, and the pod says why."""
        try:
            await runtimes.prepare(instance, manifest, self.tell, kept=kept)
        except AgentError as error:
            self._failed(error.message, manifest.restart, clock.mono())
        except OSError as error:
            self._failed(f"state_dir: {trouble(error)}", manifest.restart, clock.mono())
        except Exception as error:
            log.exception("pod.crashed", instance=instance)
            self._failed(f"internal error: {error!r}", manifest.restart, clock.mono())
        else:
            self.done, self.problem = True, ""
        finally:
            self.task = None
            self.tell("")
        if self.problem:
            log.warning("pod.not_prepared", instance=instance, reason=self.problem)

    def _failed(self, problem: str, restart: Restart, now: float) -> None:
        self.problem = problem
        self.failures += 1
        self.not_before = now + backoff(restart, self.failures)


@dataclass(frozen=True, slots=True)
class Leave:
    """One leave; without a ``task`` one of which an earlier agent saw the end."""

    task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether the stop signal may be sent."""
        return self.task is None or self.task.done()

    def cancel(self) -> None:
        """End it, because the process ended or is stopped at once."""
        if self.task is not None:
            self.task.cancel()


@dataclass(slots=True)
class Pod:
    """``target`` is the wanted manifest if the node has it, ``manifest`` that of the live process.

    ``problem`` says why the agent cannot act on a newer intent (of ModifyIndex ``refused``), ``warning`` what
    people should know of a pod that runs all the same; ``not_before``,
    ``stopping``, ``killed`` and ``told_at`` are monotonic. ``stored``: the record is in the state directory.
    ``unsaved`` says why the pod's state is not on disk; empty if it is. ``doubt`` says why its runtime cannot
    tell now what runs, so that the pod is left as it is. ``cut_off_at``: when its lease was over last, as far
    as this agent knows; monotonic, and -inf once an answer that was asked for later was obeyed.
    ``files_problem`` says why its rendered files are not up to date, ``stale`` why a restart brings them;
    ``files_restarted`` when one began last (monotonic), and ``files_pause`` how long the next one must wait.
    ``failing_from``: since when its process fails its check without a pass; monotonic. ``stages``: how far
    its start is, where that has stages (R43), and when that was asked last; monotonic.
    """

    record: Record
    damper: Damper
    target: Manifest | None = None
    manifest: Manifest | None = None
    identity: Identity | None = None
    problem: str = ""
    warning: str = ""
    refused: int = 0
    busy: bool = False
    start_failed: bool = False
    not_before: float = 0.0
    told_at: float = -math.inf
    stopping: float | None = None
    killed: float | None = None
    stored: bool = False
    unsaved: str = ""
    doubt: str = ""
    cut_off_at: float = -math.inf
    preparation: Preparation | None = None
    signalling: asyncio.Task[None] | None = None
    leave: Leave | None = None
    health: Health = field(default_factory=Health)
    failing_from: float = math.inf
    spell: Spell = field(default_factory=lambda: Spell(Health()))
    checking: asyncio.Task[None] | None = None
    unwatch: Callable[[], None] | None = None
    old_user: str = ""
    stages: Stages | None = None
    files_problem: str = ""
    stale: str = ""
    files_restarted: float = -math.inf
    files_pause: float = 0.0
    looked_at: float = -math.inf

    @property
    def instance(self) -> str:
        """The instance's name."""
        return self.record.instance

    @property
    def may_be_cut_off(self) -> bool:
        """Whether being out of contact with the store matters to this pod (``stop_after``)."""
        return any(m is not None and m.stop_after > 0 for m in (self.manifest, self.target))

    @property
    def awaits_start(self) -> bool:
        """Whether a signature permits its first start, which was not yet: it may be withdrawn until then."""
        return self.record.start_by > 0 and not self.record.has_started(self.record.manifest)

    @property
    def runs(self) -> bool:
        """Whether the workload itself runs, not what comes before or after it."""
        return self.stages is None or self.stages.stage == "running"

    @property
    def began(self) -> float:
        """When the workload itself began, in seconds since the epoch; until then when its start did."""
        return (self.stages.begun if self.stages is not None else 0.0) or self.record.started

    @property
    def lingers(self) -> float:
        """Seconds for which what follows its workload may take."""
        return self.manifest.lingers if self.manifest is not None else 0.0

    @property
    def _is_over(self) -> bool:
        """Whether the workload has ended, and what follows it has not."""
        return self.identity is not None and self.stages is not None and self.stages.stage in AFTER

    def change(self, **fields: object) -> None:
        """Replace fields of the record in memory; saving is the caller's."""
        self.record = msgspec.structs.replace(self.record, **fields)

    def renew(self) -> None:
        """Clear the history, because another pod has the instance from now on.

        Another owner's pod takes over a process that runs, and what is done for good.
        """
        goes_on = self.identity is not None and not self.asked_to_end
        done = self.record.done and self.record.wanted
        self.change(
            restarts=0,
            exits=self.record.exits[-1:] if done else [],
            failures=0,
            failing_since=0.0,
            not_before=0.0,
            reason="",
            fresh=not (goes_on or done),
            done=done,
            held=False,
        )
        self.not_before, self.start_failed = -math.inf, False

    def situation(self, *, isolated: float, halting: bool) -> Situation:
        """The input of the plan."""
        manifest = self.manifest or self.target
        preparation = self._preparation()
        return Situation(
            wanted=self.record.wanted,
            sha=self.record.manifest,
            running=self.record.running if self.identity is not None else "",
            startable=self.target is not None,
            prepared=preparation is not None and preparation.done,
            preparing=self.preparing,
            prepare_at=preparation.not_before if preparation is not None else -math.inf,
            restart=self.record.restart_due,
            done=self._done(),
            told_at=self.told_at,
            hold=self.record.hold,
            held=self.record.held,
            busy=self.busy or self._is_over,
            not_before=self.not_before,
            leaves=self.leaves,
            leaving=self.leave is not None,
            left=self.leave is not None and self.leave.over,
            stopping=self.stopping,
            killed=self.killed,
            ailing_at=self._ailing_at(),
            ailment=self._ailment(),
            grace=manifest.stop.grace if manifest is not None else 10.0,
            stop_after=manifest.stop_after if manifest is not None else 0.0,
            isolated=isolated,
            confirmed=self.cut_off_at == -math.inf,
            halting=halting,
            stale=self.stale,
        )

    def _ailing_at(self) -> float:
        """When its process is restarted if it goes on failing its check; monotonic. Nothing takes that back
        once it began, also if another agent began it.
        """
        if self.record.restarts_unhealthy:
            return -math.inf
        health = self.manifest.health if self.manifest is not None else None
        return self.failing_from + health.restart_after if health and health.restart_after else math.inf

    def _ailment(self) -> str:
        health = self.manifest.health if self.manifest is not None else None
        if health is None:
            return ""
        why = f": {self.health.reason}" if self.health.reason else ""
        return f"unhealthy for {health.restart_after:g} s (health.restart_after){why}"

    @property
    def preparing(self) -> bool:
        """Whether what its start needs is being made ready."""
        preparation = self._preparation()
        return preparation is not None and preparation.task is not None

    @property
    def asked_to_end(self) -> bool:
        """Whether its process was asked to end, or leaves before that."""
        return self.stopping is not None or self.leave is not None

    @property
    def leaves(self) -> bool:
        """Whether it leaves before it is stopped: a pod that never served has nothing to withdraw."""
        served = self.damper.published.state != "unknown"
        return self.manifest is not None and self.manifest.stop.leaves and served

    def _leaves_until(self) -> float:
        if self.leave is None or self.leave.over or self.stopping is not None or self.manifest is None:
            return 0.0
        return self.record.left_at + TOLD_SECONDS + self.manifest.stop.longest - self.manifest.stop.grace

    def _preparation(self) -> Preparation | None:
        """The preparation of the wanted manifest, if it was begun."""
        found = self.preparation
        return found if found is not None and found.sha == self.record.manifest else None

    def _done(self) -> bool:
        """Whether it ended for good, and nothing asks for another start since."""
        return self.record.done and not self.record.superseded

    def report(self, now: float) -> Reality:
        """The pod's reality record; ``now`` is monotonic seconds."""
        record = self.record
        alive = self.identity is not None
        return Reality(
            manifest=record.running if alive else record.manifest,
            owner=record.owner,
            phase=self._phase(now),
            started=record.started if alive or self._done() else 0.0,
            intent=record.acted,
            restart=max(record.restarted, 0),
            pid=self.identity.pid if self.identity is not None else 0,
            ports=record.ports,
            restarts=record.restarts,
            exits=record.exits,
            # A pod that is down has failed since its first end in a row: farms act on how long that is (W17).
            health=self.damper.published if alive else self._health_when_down(),
            reason=self._reason(),
            refused=self._refused(),
            preparing=self._doing(),
            old_user=self.old_user if alive else "",
            leaves_until=self._leaves_until() if alive else 0.0,
            sidecars=self.stages.beside if alive and self.stages is not None else {},
        )

    def _doing(self) -> str:
        doing = self.stages.doing(self.manifest or self.target) if self.stages is not None else ""
        preparation = self._preparation()
        return doing or (preparation.doing if preparation is not None else "")

    def _health_when_down(self) -> Health:
        if self._done() and self.record.exits:
            end = self.record.exits[-1]
            return Health("passing" if end.code == 0 else "critical", end.at, ending(end.code))
        return Health(since=self.record.failing_since)

    def _refused(self) -> int:
        """The ModifyIndex of the intent that the agent does not act on, although it knows it."""
        if self.problem:
            return self.refused
        preparation = self._preparation()
        return self.record.intent if preparation is not None and preparation.problem else 0

    def _phase(self, now: float) -> Phase:
        if self.identity is not None:
            ends = self.asked_to_end or self._is_over
            return "stopping" if ends else "running" if self.runs else "starting"
        if self._done():
            return "done"
        if self.record.wanted and self.record.hold and self.record.held:
            return "held"
        preparation = self._preparation()
        begun = self.busy or (preparation is not None and preparation.task is not None)
        if begun and self.record.wanted:
            return "starting"
        if not self.record.wanted:
            return "stopping"
        if self.target is None or self.start_failed or (preparation is not None and preparation.problem):
            return "failed"
        return "backoff" if now < self.not_before else "exited"

    def _reason(self) -> str:
        preparation = self._preparation()
        problem = self.problem or (preparation.problem if preparation is not None else "")
        if not problem:
            unsaved = f"{self.unsaved}: this pod's record is not saved" if self.unsaved else ""
            parts = (self.doubt, self.record.reason, unsaved, self.warning, self.files_problem)
            return "; ".join(part for part in parts if part)
        return f"cannot act on intent {self._refused()}: {problem}" if self.record.acted else problem

    def ended(self, end: Exit, *, why: str, note: str = "", mono: float, cut_off: bool = False) -> None:
        """Count an end of the process, and set when the next start may be. ``note`` is told with any reason.

        An end for another start is no failure, also if the agent that sent the signal is gone. Nor is one
        for want of contact (``cut_off``). An end because of the check is one, whatever the exit code.
        """
        # What ended while no agent ran was not attached.
        manifest = self.manifest or (self.target if self.record.running == self.record.manifest else None)
        restart = manifest.restart if manifest is not None else Restart()
        ails = self.record.restarts_unhealthy and not cut_off
        asked = (self.asked_to_end or self.record.superseded or cut_off) and not ails
        done = not (asked or ails) and ends_for_good(restart, end.code)
        if ails:
            end = msgspec.structs.replace(end, unhealthy=True)
        # How long one that ails was well counted when that began.
        begun = self.stages is None or self.stages.begun > 0
        ran = end.at - self.began if begun and not ails else 0.0
        since = self.record.failing_since if ails else end.at
        failures = 0 if asked or done else failures_after(restart, self.record.failures, ran)
        pause = backoff(restart, failures)
        self.change(
            start="",
            done=done,
            exits=[*self.record.exits, end][-EXITS_KEPT:],
            failures=failures,
            failing_since=_failing_since(self.record, failures, since),
            not_before=end.at + pause if pause else 0.0,
            reason="; ".join(
                part for part in (why if cut_off or not (asked or ails) else self.record.reason, note) if part
            ),
        )
        self.not_before = mono + pause
        if cut_off:
            self.cut_off_at = mono
        self.told_at = mono + TELL_SECONDS if done else -math.inf
        if self.leave is not None:
            self.leave.cancel()
        self.identity = self.manifest = self.stopping = self.killed = self.leave = self.stages = None

    def ails(self, why: str) -> None:
        """Note that its process is to end because of its check. A run of ``restart.reset`` seconds in health
        starts the backoff again, as a run does before a crash.
        """
        restart = self.manifest.restart if self.manifest is not None else Restart()
        since = self.health.since or self.record.started
        failures = failures_after(restart, self.record.failures, since - self.record.started) - 1
        self.change(
            ailing=self.record.start,
            reason=why,
            failures=failures,
            failing_since=_failing_since(self.record, failures + 1, since),
        )

    def failed(self, reason: str, *, now: float, mono: float) -> None:
        """Count a failed start, with the same backoff as after an exit. It is an answer to the intent: farms
        learn from it that the pod cannot run here.
        """
        restart = self.target.restart if self.target is not None else Restart()
        failures = self.record.failures + 1
        pause = backoff(restart, failures)
        self.start_failed, self.preparation = True, None
        since = _failing_since(self.record, failures, now)
        self.change(
            start="",
            acted=self.record.intent,
            failures=failures,
            failing_since=since,
            not_before=now + pause,
            reason=reason,
        )
        self.not_before = mono + pause


def _failing_since(record: Record, failures: int, now: float) -> float:
    """When the first of these failures in a row happened; 0 without any."""
    if failures == 0:
        return 0.0
    return now if failures == 1 else record.failing_since or now


def describe(end: Exit, started: float) -> str:
    """One line on how a process ended."""
    return f"{ending(end.code)} after {max(0.0, end.at - started):.1f} s"
