"""Why each pod of a rollout stays or goes, as a table."""

from __future__ import annotations

from farmd.commands.mutation import Call
from farmd.rollout import commands
from farmd.rollout.commands import RolloutPodRow
from farmd.tables.model import Column, Table
from store.rollouts import Rollout
from store.times import plain


async def explained(call: Call, rollout: Rollout) -> list[tuple[str, Table]]:
    """Why each pod of a rollout stays or goes."""
    return [("Pods", explanation(await commands.explain(call, rollout.id)))]


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
