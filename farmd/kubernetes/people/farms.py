"""What farms say of the cluster that a person asks: which of their names means it, and by which settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farmd import overview
from farmd.commands.mutation import Call
from farmd.config.kubernetes import KNATIVE_NAMESPACE
from farmd.kubernetes.identity import uid_of
from farmd.kubernetes.transport import REQUEST_SECONDS, KubernetesTransport
from store.farms import ClusterReport, Member


class ClusterFarm(NamedTuple):
    """A farm that works in the cluster, its name for it, and what it says of it."""

    farm: Member
    cluster: str
    report: ClusterReport


async def workers(call: Call, transport: KubernetesTransport) -> Sequence[ClusterFarm]:
    """The farms that work in the cluster behind ``transport``; where nobody may read its uid, in any."""
    there = [
        ClusterFarm(farm, name, report)
        for farm in await overview.farms(call.client, call.keys)
        for name, report in sorted(farm.clusters.items())
    ]
    uid = await uid_of(transport, REQUEST_SECONDS) if there else ""
    return [each for each in there if not uid or each.report.uid in ("", uid)]


def knative_namespace(found: Sequence[ClusterFarm]) -> str:
    """Where these farms read Knative's settings, as most of them say (the doctor tells if they differ)."""
    said = [each.report.knative_namespace for each in found if each.report.knative_namespace]
    return max(sorted(set(said)), key=said.count, default=KNATIVE_NAMESPACE)
