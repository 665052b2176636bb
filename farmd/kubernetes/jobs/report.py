"""The status of a job in Kubernetes: conditions, counters and times (Kubeflow's JobStatus).

What must never break: Succeeded and Failed are for ever and exclude each other; a status that says the same
is equal to the former one, so that nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from farmd.jobs.facts import Count, JobSummary
from farmd.kubernetes.objects import seconds_since_epoch
from farmd.work.model import Blocked
from store.jobs import Run
from store.times import rfc3339

ConditionType = Literal["Created", "Running", "Restarting", "Suspended", "Blocked", "Succeeded", "Failed"]
_TERMINAL = ("Succeeded", "Failed")
REFUSED = "refused"
"""The code of what the API server refuses (``Blocked``)."""


class JobCondition(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One condition; times are RFC 3339. The last transition is that of its ``status``."""

    type: str
    status: str = "True"
    reason: str = ""
    message: str = ""
    last_update_time: str = ""
    last_transition_time: str = ""


class ReplicaStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The slots of one type: members that run, slots that ended well, and such that failed. ``selector``: the
    labels of its pods, by which an autoscaler counts them.
    """

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    selector: str = ""


class ResourceStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The status of a custom resource. ``claim`` is the farm's that wrote last (R16)."""

    conditions: tuple[JobCondition, ...] = ()
    replica_statuses: dict[str, ReplicaStatus] = {}
    start_time: str | None = None
    completion_time: str | None = None
    last_reconcile_time: str | None = None
    claim: str = ""
    restarts: int = 0
    attempt: int = 0

    def true(self, kind: str) -> bool:
        """Whether a condition of that type holds."""
        return any(each.type == kind and each.status == "True" for each in self.conditions)

    @property
    def finished(self) -> bool:
        """Whether it succeeded or failed."""
        return any(self.true(kind) for kind in _TERMINAL)


def turns(before: ResourceStatus, after: ResourceStatus) -> bool:
    """Whether a job starts, is suspended, goes on or ends: times of which the status is the only record."""
    return (before.start_time, before.completion_time, before.finished) != (
        after.start_time,
        after.completion_time,
        after.finished,
    )


def is_succeeded(status: ResourceStatus) -> bool:
    """Whether the job succeeded."""
    return status.true("Succeeded")


def is_failed(status: ResourceStatus) -> bool:
    """Whether the job failed."""
    return status.true("Failed")


def update_job_conditions(
    conditions: tuple[JobCondition, ...], new: JobCondition, now: str
) -> tuple[JobCondition, ...]:
    """The conditions with a new one, which goes to the end; the same ones where it says nothing new.

    A message alone is nothing new, unless it says why the job is blocked. Running and Restarting replace each
    other; an end turns Running off and takes Restarting away (Kubeflow leaves it true).
    """
    if any(each.type in _TERMINAL and each.status == "True" for each in conditions):
        return conditions
    known = next((each for each in conditions if each.type == new.type), None)
    same = known is not None and (known.status, known.reason) == (new.status, new.reason)
    explains = (new.type, new.status) == ("Blocked", "True")
    if known is not None and same and (known.message == new.message or not explains):
        return conditions
    since = known.last_transition_time if known is not None and known.status == new.status else now
    dropped = {new.type}
    if new.status == "True":
        dropped |= {"Running": {"Restarting"}, "Restarting": {"Running"}}.get(new.type, set())
        dropped |= {"Restarting"} if new.type in _TERMINAL else set()
    kept = [_turned_off(each, new, now) for each in conditions if each.type not in dropped]
    return (*kept, msgspec.structs.replace(new, last_update_time=now, last_transition_time=since))


def _turned_off(known: JobCondition, new: JobCondition, now: str) -> JobCondition:
    """Running as it is after an end or a suspension of the job; other conditions as they are."""
    ends = new.type in (*_TERMINAL, "Suspended") and new.status == "True"
    if not ends or known.type not in ("Running", "Blocked") or known.status != "True":
        return known
    changes = {"status": "False", "reason": new.reason, "message": new.message}
    return msgspec.structs.replace(known, **changes, last_update_time=now, last_transition_time=now)


def status_of(
    before: ResourceStatus,
    name: str,
    run: Run,
    standing: JobSummary,
    blocked: Blocked | None,
    now: float,
    selectors: Mapping[str, str] | None = None,
) -> ResourceStatus:
    """What a job's status becomes; ``name`` is the job's, for people, and ``selectors`` are by type."""
    at = rfc3339(now)
    conditions = before.conditions
    for new in _conditions(before, name, standing, blocked):
        conditions = update_job_conditions(conditions, new, at)
    return msgspec.structs.replace(
        before,
        conditions=conditions,
        replica_statuses=_replicas(before, standing, selectors or {}),
        start_time=_moment(run.started) or (before.start_time if run.outcome else None),
        completion_time=_moment(run.finished),
        restarts=run.restarts,
        attempt=run.attempt,
    )


def refused(before: ResourceStatus, text: str, now: float) -> ResourceStatus:
    """The status of a job of which the API server refuses something, in its words."""
    blocked = _condition("Blocked", _word(REFUSED), text)
    return msgspec.structs.replace(
        before, conditions=update_job_conditions(before.conditions, blocked, rfc3339(now))
    )


def _conditions(
    before: ResourceStatus, name: str, standing: JobSummary, blocked: Blocked | None
) -> list[JobCondition]:
    """The conditions that a standing asks for, in the order in which they are set."""
    found = [] if before.conditions else [_condition("Created", "JobCreated", f"job {name} is created")]
    if before.true("Suspended") and standing.state not in ("suspended", "deleting"):
        found.append(_condition("Suspended", "JobResumed", f"job {name} continues", "False"))
    if blocked is not None:
        found.append(_condition("Blocked", _word(blocked.code), blocked.text))
    elif before.true("Blocked"):
        found.append(_condition("Blocked", "Unblocked", f"job {name} continues", "False"))
    match standing.state:
        case "running":
            found.append(_condition("Running", "JobRunning", f"job {name} is running"))
        case "restarting":
            found.append(_condition("Restarting", "JobRestarting", f"job {name}: {standing.message}"))
        case "suspended":
            found.append(_condition("Suspended", "JobSuspended", f"job {name} is suspended"))
        case "succeeded":
            found.append(_condition("Succeeded", "JobSucceeded", f"job {name} succeeded"))
        case "failed":
            found.append(_failure(name, standing))
    return found


def _failure(name: str, standing: JobSummary) -> JobCondition:
    reason = "JobFailedValidation" if standing.reason == "FailedValidation" else "JobFailed"
    return _condition("Failed", reason, f"job {name} failed: {standing.reason}: {standing.message}")


def _condition(kind: ConditionType, reason: str, message: str, status: str = "True") -> JobCondition:
    return JobCondition(type=kind, status=status, reason=reason, message=message)


def _word(code: str) -> str:
    """A code as conditions write reasons: ``no_room`` becomes ``NoRoom``."""
    return "".join(part.capitalize() for part in code.split("_"))


def _replicas(
    before: ResourceStatus, standing: JobSummary, selectors: Mapping[str, str]
) -> dict[str, ReplicaStatus]:
    """The counters; those of a finished job stay, but what still runs of a success counts as ended."""
    if not before.finished:
        return {name: _counted(each, selectors.get(name, "")) for name, each in standing.counts.items()}
    if not is_succeeded(before):
        return before.replica_statuses
    return {
        name: msgspec.structs.replace(each, active=0, succeeded=each.succeeded + each.active)
        for name, each in before.replica_statuses.items()
    }


def _counted(count: Count, selector: str) -> ReplicaStatus:
    return ReplicaStatus(
        active=count.running, succeeded=count.succeeded, failed=count.failed, selector=selector
    )


def _moment(at: float) -> str | None:
    return rfc3339(at) if at else None


def run_of(status: ResourceStatus, stored: Run) -> Run:
    """The run of a job in Kubernetes: counts from the store, start and end from the job's own status.

    A status of another controller may lack the time of completion: then the job ended with its condition.
    """
    outcome = "succeeded" if is_succeeded(status) else "failed" if is_failed(status) else ""
    over = (each for each in status.conditions if each.type in _TERMINAL and each.status == "True")
    ended = next((each.last_transition_time for each in over), "")
    return msgspec.structs.replace(
        stored,
        started=seconds_since_epoch(status.start_time),
        finished=seconds_since_epoch(status.completion_time or ended),
        outcome=outcome,
    )


def counts_of(run: Run) -> Run:
    """What of such a run stands in the store."""
    return msgspec.structs.replace(run, started=0.0, finished=0.0, outcome="", reason="", message="")


def patch_of(before: ResourceStatus, after: ResourceStatus) -> Mapping[str, Any] | None:
    """The merge patch from one status to another, of the fields that changed alone; None: none did."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    changed: dict[str, Any] = {name: value for name, value in new.items() if value != old[name]}
    if "replicaStatuses" in changed:
        gone = dict.fromkeys(old["replicaStatuses"].keys() - new["replicaStatuses"].keys())
        counters = {
            name: _cleared(old["replicaStatuses"].get(name, {}), each)
            for name, each in new["replicaStatuses"].items()
        }
        changed["replicaStatuses"] = {**counters, **gone}
    return {"status": changed} if changed else None


def _cleared(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Counters for a merge patch, which takes a field away by null alone."""
    return {**dict.fromkeys(old.keys() - new.keys()), **new}
