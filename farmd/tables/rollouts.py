"""Why each pod of a rollout stays or goes, as a table."""

from __future__ import annotations

from farmd.rollout.commands import RolloutPodRow
from farmd.tables.model import Column, Table
from store.times import plain


def explanation(rows: list[RolloutPodRow]) -> Table:
    """One line a pod, those that go in this stage first."""
    return Table(
        kind="RolloutExplanation",
        rows=rows,
        columns=(
            Column("SIDE", lambda row: row.side),
            Column("POD", lambda row: row.pod),
            Column("FATE", lambda row: row.fate),
            Column("CLASS", lambda row: row.kind),
            Column("STATE", lambda row: row.state),
            Column("REASON", lambda row: row.reason),
        ),
        name=lambda row: f"pod/{row.pod}",
        plain=plain,
        empty="no pods",
    )
