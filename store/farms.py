"""Farm presence, and the clusters of another system that farms work in."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from store.times import Time

# Clusters of another system that farms work in: which one a name stands for, and what a farm says of it.

# What a farm knows while it reaches a cluster begins so, and ends with the cluster's name.
CLUSTERS = "kubernetes."


def of_clusters(features: Iterable[str]) -> list[str]:
    """Those of some features or needs that name a cluster."""
    return [feature for feature in features if feature.startswith(CLUSTERS)]


class PinnedCluster(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``meta/kubernetes/<name>``: the cluster that a name stands for, since when and by whose word.

    ``uid`` is that of its namespace kube-system; empty: nobody could read it yet. ``alerts`` are the open
    incidents about it, whichever farm told of them.
    """

    uid: str = ""
    by: str = ""
    since: Time = 0.0
    alerts: list[str] = []


class ClusterReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A farm's report on a cluster: the uid that answers it, the namespaces that it works in (none: all),
    that of Knative's controllers (empty: an older farm), and its troubles in words, by code.
    """

    uid: str = ""
    namespaces: list[str] = []
    knative_namespace: str = ""
    troubles: dict[str, str] = {}


# Farm presence: ``farms/<id>``, held by the farm's session; these keys are the list of members (R7).


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
