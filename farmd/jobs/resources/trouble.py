"""What keeps a pod from its work, for people: one reason and one message for each cause (Kubeflow's
abnormal-pod events).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from farmd.jobs.objects import ContainerStatus, KubePod


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
