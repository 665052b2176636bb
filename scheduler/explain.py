"""An explanation as rows for a table or JSON, and as text for people. This module decides nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler.model import Explanation, NodeJudgement
from store.words import share


class Row(msgspec.Struct, frozen=True):
    """One node. ``state`` is ``eligible``, ``placed`` or ``refused``; ``rank`` counts from 1, 0 for none.

    ``parts`` maps the named parts of the score to points; ``reasons`` holds every reason, as
    ``code: text``. ``stays``: whether a pod on the node may stay.
    """

    node: str
    state: str
    rank: int
    score: float
    parts: dict[str, float]
    reasons: list[str]
    placed: int
    stays: bool


def rows(explanation: Explanation) -> list[Row]:
    """One row a node: ranked nodes, then nodes with pods, then refused nodes by number of reasons."""
    ranks = {name: place for place, name in enumerate(explanation.ranking, start=1)}

    def order(verdict: NodeJudgement) -> tuple[int, int, str]:
        if verdict.eligible:
            return 0, ranks[verdict.node], verdict.node
        return (1 if verdict.placed else 2), len(verdict.reasons), verdict.node

    return [_row(verdict, ranks.get(verdict.node, 0)) for verdict in sorted(explanation.verdicts, key=order)]


def document(explanation: Explanation) -> dict[str, Any]:
    """The explanation as plain data for ``-o json``."""
    nearest = explanation.nearest
    return {
        "nodes": [msgspec.to_builtins(row) for row in rows(explanation)],
        "eligible": len(explanation.ranking),
        "nearest_miss": msgspec.to_builtins(_row(nearest, 0)) if nearest is not None else None,
    }


def text(explanation: Explanation) -> list[str]:
    """Lines for a terminal or a log: a head line, one line a node and reason, the nearest miss."""
    count, total = len(explanation.ranking), len(explanation.verdicts)
    lines = [f"{share(count, total, 'node')} can take one more pod"]
    for row in rows(explanation):
        if row.state == "eligible":
            parts = ", ".join(f"{name} {points:+.2f}" for name, points in row.parts.items())
            lines.append(f"  {row.rank:>3}. {row.node}  score {row.score:.2f} ({parts})")
            continue
        stays = ", pods there must leave" if row.placed and not row.stays else ""
        lines.append(f"    - {row.node}  {row.state}{stays}")
        lines += [f"         {reason}" for reason in row.reasons]
    if not count and explanation.nearest is not None:
        near = "; ".join(reason.text for reason in explanation.nearest.reasons)
        lines.append(f"nearest miss: {explanation.nearest.node}: {near}")
    return lines


def _row(verdict: NodeJudgement, rank: int) -> Row:
    parts: dict[str, float] = {}
    for part in verdict.parts:
        parts[part.name] = round(parts.get(part.name, 0.0) + part.points, 6)
    state = "eligible" if verdict.eligible else "placed" if verdict.placed else "refused"
    return Row(
        node=verdict.node,
        state=state,
        rank=rank,
        score=round(verdict.score, 6),
        parts=parts,
        reasons=[f"{reason.code}: {reason.text}" for reason in verdict.reasons],
        placed=verdict.placed,
        stays=verdict.retains,
    )
