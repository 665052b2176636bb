"""The status of an owner of pods, written while some of its pods are healthy and not available yet (R22)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farmd.farm.statuses import StatusWriter
from farmd.pods.state import Place, PodState, settled, settling
from farmd.wake import earliest
from store.status import Status


async def report(
    writer: StatusWriter,
    pods: Mapping[Place, PodState],
    min_healthy_time: float,
    status: Callable[[Mapping[Place, PodState]], Status],
    index: int,
) -> float | None:
    """Write the status of these pods if it changed; returns when to look again, if time alone brings that.

    A claim younger than ``min_healthy_time`` has not seen that the pods are available. Where an earlier owner
    said ``converged`` and only that is missing, its word stands: a farm that starts would otherwise rewrite
    the status of every item twice, and own a timer for each (R23a).

    Raises:
        ClaimLost: the fence refused it.
    """
    if writer.younger_than(min_healthy_time) and writer.stands(status(settled(pods)), index):
        return None
    said = status(pods)
    due = await writer.write(said, index)
    return due if said.state == "disabled" else earliest(due, settling(pods.values()))
