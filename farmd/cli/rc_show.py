"""``farmctl rc list | get | describe | pods | explain``: what is particular to controllers."""

from __future__ import annotations

from farmd import overview
from farmd.cli import owner_show, owners
from farmd.cli.names import objects
from farmd.overview import ControllerRow
from farmd.replication.explaining import explain as judge
from farmd.replication.spec import as_file
from store.rcs import KIND


def _facts(row: ControllerRow) -> list[tuple[str, str]]:
    rc, status = row.record, row.status
    counts = f"{rc.replicas_desired} desired"
    if status is not None:
        counts += f", {status.placed} placed, {status.healthy} healthy, {status.outdated} outdated"
    return [
        ("Replicas", counts),
        ("A node", f"at most {rc.replicas_per_node}"),
        ("Unavailable", f"at most {rc.max_unavailable}"),
        owners.availability(rc.min_healthy_time),
        ("Strategy", f"{rc.strategy}, on a lost node: {rc.on_lost}"),
        ("Managed by", rc.managed_by or "nobody"),
    ]


_FAMILY = owner_show.Family(
    kind=KIND,
    document="ReplicationController",
    noun="rc",
    one="controller",
    many="controllers",
    complete=objects(KIND),
    rows=overview.controllers,
    row=overview.controller,
    desired=lambda row: str(row.record.replicas_desired),
    facts=_facts,
    as_file=as_file,
    explain=judge,
)

list_ = owner_show.listing(_FAMILY)
get = owner_show.getting(_FAMILY)
pods = owner_show.pods(_FAMILY)
describe = owner_show.describing(_FAMILY)
explain = owner_show.explaining(_FAMILY)
