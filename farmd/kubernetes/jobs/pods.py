"""A pod of Kubernetes as a member of its job, and the trouble that it is in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from farmd.jobs.facts import Cause, Member, Phase, Slot
from farmd.kubernetes.jobs.names import ATTEMPT_ANNOTATION
from farmd.kubernetes.objects import ContainerStatus, KubePod, PodCondition, Terminated, seconds_since_epoch

# A pod of Kubernetes as a member of its job.
#
# What must never break: a pod that nobody can tell a failure of is no failure of its program; the exit code
# is that of the container that does the work, or of what kept it from starting.

_PHASES: Mapping[str, Phase] = {
    "Pending": "starting",
    "Running": "running",
    "Succeeded": "succeeded",
    "Failed": "failed",
}
# Reasons of a pod's own status, and of its condition DisruptionTarget.
_CAUSES: Mapping[str, Cause] = {
    "Evicted": "evicted",
    "Shutdown": "evicted",
    "Terminated": "evicted",
    "NodeShutdown": "evicted",
    "TerminationByKubelet": "evicted",
    "EvictionByEvictionAPI": "evicted",
    "Preempting": "preempted",
    "Preempted": "preempted",
    "PreemptionByScheduler": "preempted",
    "NodeLost": "lost",
    "DeletionByTaintManager": "lost",
    "DeletionByPodGC": "lost",
    "NodeAffinity": "lost",
    "UnexpectedAdmissionError": "evicted",
}


def member_of(pod: KubePod, slot: Slot, container: str = "") -> Member:
    """The member that a pod is; ``container`` is the one that does the work (empty, or absent: the first)."""
    meta, status = pod.metadata, pod.status
    statuses = (*status.init_container_statuses, *status.container_statuses)
    phase = _PHASES.get(status.phase, "unknown" if status.phase else "starting")
    ended = _ended(pod, container) if phase == "failed" else None
    text = meta.annotations.get(ATTEMPT_ANNOTATION, "0")
    return Member(
        slot=slot,
        attempt=int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else 0,
        id=meta.uid,
        version=meta.resource_version,
        phase=phase,
        leaving=meta.terminating,
        exit=None if ended is None else ended.exit_code,
        cause=_cause(pod, ended) if phase == "failed" else "",
        restarts=sum(each.restart_count for each in statuses),
        at=seconds_since_epoch(meta.creation_timestamp),
        ended=seconds_since_epoch(ended.finished_at) if ended is not None else 0.0,
        message=_message(pod, ended),
    )


def _ended(pod: KubePod, container: str) -> Terminated | None:
    """The end that made a pod fail; None: no container's did."""
    main = pod.status.container_statuses
    named = [each for each in main if each.name == container] or list(main[:1])
    others = (*pod.status.init_container_statuses, *main)
    return next((end for end in _failures((*named, *others))), None)


def _failures(statuses: Iterable[ContainerStatus]) -> Iterable[Terminated]:
    ends = (each.state.terminated for each in statuses)
    return (end for end in ends if end is not None and end.exit_code != 0)


def _cause(pod: KubePod, ended: Terminated | None) -> Cause:
    disrupted = (each.reason for each in pod.status.conditions if _disruption(each))
    for reason in (pod.status.reason, *disrupted):
        if reason in _CAUSES:
            return _CAUSES[reason]
    return "oom" if ended is not None and ended.reason == "OOMKilled" else ""


def _disruption(condition: PodCondition) -> bool:
    return condition.type == "DisruptionTarget" and condition.status == "True"


def _message(pod: KubePod, ended: Terminated | None) -> str:
    text = pod.status.message or ((ended.message or _named(ended)) if ended is not None else "")
    return " ".join(text.split())


def _named(ended: Terminated) -> str:
    """The reason of an end, where it says more than its exit code does: ``OOMKilled``."""
    return "" if ended.reason == "Error" else ended.reason


# What keeps a pod from its work, for people: one reason and one message for each cause (Kubeflow's
# abnormal-pod events).


class Trouble(NamedTuple):
    """A word, and one line."""

    reason: str
    message: str


def troubles(pod: KubePod) -> list[Trouble]:
    """What is wrong with a pod that is neither over nor leaving: of the containers, else of the init
    containers, else of the condition that changed last.
    """
    if pod.status.phase in ("Succeeded", "Failed") or pod.metadata.terminating:
        return []
    for statuses in (pod.status.container_statuses, pod.status.init_container_statuses):
        if statuses:
            return [trouble for each in statuses for trouble in _of_container(pod, each)]
    last = max(pod.status.conditions, key=lambda each: each.last_transition_time or "", default=None)
    if last is None or last.status == "True":
        return []
    return [Trouble(last.reason, f"pod {pod.metadata.name}: {last.message}")]


def _of_container(pod: KubePod, status: ContainerStatus) -> Iterator[Trouble]:
    where = f"pod {pod.metadata.name}, container {status.name}"
    ended, waiting = status.state.terminated, status.state.waiting
    if ended is not None and ended.exit_code:
        yield Trouble(ended.reason or "Error", f"{where}: exit code {ended.exit_code}: {ended.message}")
    if waiting is not None and waiting.message:
        yield Trouble(waiting.reason, f"{where}: {waiting.message}")
