"""The fields of an owner's record that say who changes its pods: pure (R14).

``hands`` grows by one with each change of ``taken``, and only then: if an owner's worker finds another
number than it knew, it reads the pods again.
"""

from __future__ import annotations

from typing import Any

from farmd.kinds import KINDS
from store.services import KIND as SERVICES


def passed(owner: Any, *, taken: bool) -> dict[str, Any]:
    """The fields when its manager alone changes its pods from now on (``taken``), or its own worker does."""
    return {"taken": taken, "hands": owner.hands + (owner.taken != taken)}


def freed(owner: Any) -> dict[str, Any]:
    """The fields from the moment on at which nothing manages it any more.

    What farms had to know of its manager they need not know then. The owner of a service's pods is always one
    that a deployment made, so what it needs stays (R11). A version that was coming comes no more.
    """
    family = owner.managed_by.partition("/")[0]
    drop = KINDS[family].features if family in KINDS and not owner.part_of.startswith(f"{SERVICES}/") else ()
    needs = [need for need in owner.needs if need not in drop]
    coming: dict[str, Any] = {}
    if getattr(owner, "coming", ""):
        coming = {
            "coming": "",
            "coming_to": 0,
            "coming_held": False,
            "coming_beside": False,
            "superseded": [],
        }
    return {"managed_by": "", "needs": needs, **coming, **passed(owner, taken=False)}
