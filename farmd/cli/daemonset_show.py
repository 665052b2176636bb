"""``farmctl daemonset list | get | describe | pods | explain``: what is particular to daemon sets."""

from __future__ import annotations

from farmd import overview
from farmd.cli import owner_show, owners
from farmd.cli.names import objects
from farmd.daemonset.explaining import explain as judge
from farmd.daemonset.spec import as_file
from farmd.overview import DaemonSetRow
from store.daemonsets import KIND


def _facts(row: DaemonSetRow) -> list[tuple[str, str]]:
    record, status = row.record, row.status
    counts = "not known yet"
    if status is not None:
        counts = (
            f"{status.desired} desired, {status.placed} placed, {status.healthy} healthy,"
            f" {status.outdated} outdated"
        )
    rate = f"at most {record.rate} nodes a minute" if record.rate else "no limit a minute"
    return [
        ("Nodes", counts),
        ("Stay healthy", "all but one" if record.min_health is None else str(record.min_health)),
        owners.availability(record.min_healthy_time),
        ("Pace", f"{rate}, at most {record.max_in_progress} nodes at a time"),
    ]


_FAMILY = owner_show.Family(
    kind=KIND,
    document="DaemonSet",
    noun="daemonset",
    one="daemon set",
    many="daemon sets",
    complete=objects(KIND),
    rows=overview.daemonsets,
    row=overview.daemonset,
    desired=owners.count("desired"),
    facts=_facts,
    as_file=as_file,
    explain=judge,
)

list_ = owner_show.listing(_FAMILY)
get = owner_show.getting(_FAMILY)
pods = owner_show.pods(_FAMILY)
describe = owner_show.describing(_FAMILY)
explain = owner_show.explaining(_FAMILY)
