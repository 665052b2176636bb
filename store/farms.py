"""Farm presence: ``farms/<id>``, held by the farm's session; these keys are the list of members (R7)."""

from __future__ import annotations

import msgspec

from store.clusters import ClusterReport
from store.times import Time


class Member(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One farm and what it can claim. A ``draining`` farm hands its items over and takes none. A
    ``starting`` farm has not read everything yet and takes none either; older versions never say so.

    ``boot``, ``pid`` and ``ticks`` (its start, in clock ticks since boot) identify the process. ``clusters``:
    what it says of those of other systems that it works in, by name, for people. ``ttl``: that of its
    session, in seconds; 0 where an older version does not say. ``denied``: what its token lacks of the rights
    that a farm needs, for people.
    """

    id: str
    version: str
    session: str = ""
    kinds: list[str] = []
    selector: str = ""
    features: list[str] = []
    draining: bool = False
    starting: bool = False
    address: str = ""
    host: str = ""
    boot: str = ""
    pid: int = 0
    ticks: int = 0
    since: Time = 0.0
    ttl: float = 0.0
    clusters: dict[str, ClusterReport] = {}
    denied: str = ""
