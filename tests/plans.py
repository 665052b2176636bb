"""What a plan says, for tests of pure decisions."""

from __future__ import annotations

from farmd.work.model import Ask, Plan


def said(plan: Plan | Ask[object]) -> str:
    """What stands in the way of the rest, in people's words."""
    assert not isinstance(plan, Ask), plan
    return plan.blocked.text if plan.blocked is not None else ""
