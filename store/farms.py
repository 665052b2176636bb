"""Farm presence: ``farms/<id>``, held by the farm's session; the list of members (R7)."""

from __future__ import annotations

import msgspec


class Member(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One farm: what it can claim. ``draining`` farms give items away and take none.

    ``boot``, ``pid`` and ``ticks`` (its start, in clock ticks since boot) tell which process it is.
    """

    id: str
    version: str
    session: str = ""
    kinds: list[str] = []
    selector: str = ""
    features: list[str] = []
    draining: bool = False
    address: str = ""
    host: str = ""
    boot: str = ""
    pid: int = 0
    ticks: int = 0
    since: float = 0.0
