"""Restarting, stopping or losing farms, agents, disks or Consul touches no workload (R27)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tests.soak.sight import Sight


def broken(earlier: Sight, before: Sight, after: Sight, killed: Collection[tuple[int, int]]) -> Iterable[str]:
    """Workloads that ended although their intent stood unchanged, and nobody killed them. One with
    ``stop_after`` may end because its agent heard nothing of Consul.

    The intent is compared with the look before the last one, too: an agent may act on a change late.
    """
    alive = {(each.pid, each.ticks) for each in after.workloads}
    for each in before.workloads:
        identity = each.pid, each.ticks
        wanted = [sight.intent(each.place) for sight in (earlier, before, after)]
        first = wanted[0]
        if identity in alive or identity in killed or first is None or each.stop_after:
            continue
        manifest = after.manifests.get(first[1].manifest)
        unchanged = {found and found[0].modify_index for found in wanted} == {first[0].modify_index}
        meant = manifest is not None and manifest.env.get("SOAK_VERSION") == each.version
        if unchanged and meant and after.lasts(first[1].manifest):
            yield f"the process {each.pid} of {each.place} ended, although its intent has not changed"
