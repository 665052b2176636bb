"""Status: what an item's owner last did, for people. Written on change only; no decision reads it."""

from __future__ import annotations

from typing import Literal

import msgspec


class Status(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """State of one item; ``blocked`` always comes with a reason.

    ``placed`` counts pods that exist, ``healthy`` those that pass on the right manifest,
    ``outdated`` those that still run another one.
    """

    state: Literal["converged", "progressing", "blocked", "frozen", "disabled"]
    desired: int = 0
    placed: int = 0
    healthy: int = 0
    outdated: int = 0
    reason: str = ""
    farm: str = ""
    since: float = 0.0
