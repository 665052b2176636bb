"""The families of records in the store, and the properties of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Literal, TypeVar

from store import access, codec, config, jobtemplates, revocations, secrets
from store.apps import App, AppStatus, ResourceTracker
from store.daemonsets import DAEMON_SET_ID_LABEL, DaemonSet
from store.deployments import DEPLOYMENT_LABEL, SERVICE_LABEL, Deployment, DeploymentStatus
from store.entry import Entry
from store.errors import RecordInvalid
from store.failsafe import Failsafe
from store.farms import Member
from store.jobs import JOB_ID_LABEL, Job, JobStatus, Run
from store.jobtemplates import JobTemplate, Started
from store.keys import HEX_DIGITS, Keys, is_sentinel
from store.labels import RC_ID_LABEL, RESERVED_LABELS
from store.named import decode_named
from store.nodes import Agent, Node, NodeStatus, Reserved
from store.pods import Place, Pod, SharedLabels
from store.rcs import ReplicationController, small
from store.reality import Glance, Intent, Reality, SharedIntents, dated, glance
from store.rollouts import Ended, Rollout, RolloutStatus, past_name
from store.schedules import Schedule, ScheduleStatus
from store.services import Service
from store.signatures import Signature
from store.status import ItemStatus, Status
from store.work import Work

T = TypeVar("T")

Watched = Literal["no", "whole", "by id", "by name"]


def _whole(record: Any) -> Any:
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[T]):
    """One family of records; ``T`` is the type of a record in a cache.

    Attributes:
        name: the first part of its keys.
        record: the type of its values; None: the values have several types, or are no records.
        parts: how many parts its keys have after the name.
        watched: whether processes watch the tree: as a whole, or in 16 shards by the first digit of an id
            or of a name's hash (R23). A watched tree has a sentinel, and each shard has one besides.
        query: the beginning that its name shares with that of another small tree alone: one query follows
            both; empty: it has a query of its own.
        own: a farm applies its own changes from Consul's answers, so it may see changes of others later.
        pause: least seconds between two answers of one of its queries; 0: no pause.
        keep_raw: whether a cache keeps each value's bytes, for records that a farm rewrites.
        keep_unknown: whether it keeps only the bytes of values with fields that this version does not know,
            for such records of a large tree.
        compact: called once a cache; returns the function that makes a decoded record smaller.
        dated: adds to a compacted record the time when this process saw it, by its own clock.
        refers: its place in the order in which families are read for references to manifests (R24): a
            source comes before the records derived from it; 0: its records never refer to a manifest.
        younger: a cluster may have been registered before this family existed; the first farm that knows it
            creates its sentinels (R20).
        owner_label: the label of pods that holds the id of their owner; empty: its records own no pods.
        claimed: it is a kind of work: ``locks/``, ``work/`` and ``status/`` hold keys of its items.
        outside: its items are objects of another system, so the store has no record of them.
        status: the type of the status of such an item.
        during: returns the item, as ``<family>/<id>``, during which a record owns pods itself, such as a
            service's hook; empty: it owns none.
        switches: the field of a record that holds the id of the service whose owners it changes; empty: none.
        leaves: the fields that others may change in parts of its records (R14).
        opens: a part of one of its records may name more such fields, in ``open``.
        named: people name its records: ``names/<family>/`` holds the id for each name.
        passive: nobody works on its records: one is ready once it is written, and deleted at once.
        item: the one item of such a kind, which is no record of it; empty: its records are its items.
    """

    name: str
    record: type[Any] | None = None
    parts: int = 1
    watched: Watched = "no"
    query: str = ""
    own: bool = False
    pause: float = 0.0
    keep_raw: bool = False
    keep_unknown: bool = False
    compact: Callable[[], Callable[[Any], T]] = lambda: _whole
    dated: Callable[[T, T | None, float], T] | None = None
    refers: int = 0
    younger: bool = False
    owner_label: str = ""
    claimed: bool = False
    outside: bool = False
    status: type[ItemStatus] = Status
    named: bool = False
    passive: bool = False
    item: str = ""
    switches: str = ""
    leaves: frozenset[str] = frozenset()
    opens: bool = False
    during: Callable[[T], str] | None = None

    @property
    def sharded(self) -> bool:
        """Whether its tree is divided into shards once it has grown."""
        return self.watched in {"by id", "by name"}

    @property
    def owns_pods(self) -> bool:
        """Whether its records own pods, intents and realities."""
        return bool(self.owner_label)

    @property
    def proven(self) -> bool:
        """Whether its tree has a sentinel: an answer without it is no evidence of absence (R20)."""
        return self.watched != "no" or bool(self.refers)

    @property
    def cached(self) -> bool:
        """Whether a farm keeps a copy of its records."""
        return self.watched != "no" and self.record is not None


# The registry of the families of records in the store: code that walks the families asks it.
#
# An entry tells which keys the records have, whether the tree is watched and has sentinels (R20, R23), what
# a farm keeps of it in memory, whether its records may refer to manifests (R24), own pods or are claimed. A
# new family needs a new entry in ``FAMILIES``.

APPS: Family[App] = Family(
    name="apps",
    record=App,
    watched="whole",
    younger=True,
    claimed=True,
    status=AppStatus,
    leaves=frozenset({"restart", "disabled", "active"}),
    opens=True,
)
TRACKERS: Family[ResourceTracker] = Family(name="trackers", record=ResourceTracker, parts=2)
DEPLOYMENTS: Family[Deployment] = Family(
    name="deployments",
    record=Deployment,
    watched="whole",
    refers=1,
    younger=True,
    claimed=True,
    status=DeploymentStatus,
    named=True,
)
ROLLOUTS: Family[Rollout] = Family(
    name="rollouts",
    record=Rollout,
    watched="whole",
    refers=1,
    younger=True,
    claimed=True,
    status=RolloutStatus,
    named=True,
    switches="service",
)
SERVICES: Family[Service] = Family(
    name="services",
    record=Service,
    watched="whole",
    refers=1,
    younger=True,
    named=True,
    during=lambda service: service.deployment and f"{DEPLOYMENTS.name}/{service.deployment}",
    leaves=frozenset({"restart"}),
)
RCS: Family[ReplicationController] = Family(
    name="rcs",
    record=ReplicationController,
    watched="by id",
    keep_unknown=True,
    compact=lambda: small,
    refers=2,
    owner_label=RC_ID_LABEL,
    claimed=True,
    named=True,
)
DAEMONSETS: Family[DaemonSet] = Family(
    name="daemonsets",
    record=DaemonSet,
    watched="whole",
    keep_unknown=True,
    refers=2,
    owner_label=DAEMON_SET_ID_LABEL,
    claimed=True,
    named=True,
)
JOBS: Family[Job] = Family(
    name="jobs",
    record=Job,
    watched="whole",
    keep_unknown=True,
    refers=2,
    younger=True,
    owner_label=JOB_ID_LABEL,
    claimed=True,
    status=JobStatus,
    named=True,
)
RUNS: Family[Run] = Family(name="runs", record=Run)
SCHEDULES: Family[Schedule] = Family(
    name="schedules",
    record=Schedule,
    watched="whole",
    keep_unknown=True,
    younger=True,
    claimed=True,
    status=ScheduleStatus,
    named=True,
)
JOB_TEMPLATES: Family[JobTemplate] = Family(
    name=jobtemplates.KIND,
    record=JobTemplate,
    claimed=True,
    named=True,
    passive=True,
    item=jobtemplates.STARTS,
)
WORK: Family[Work] = Family(name="work", record=Work, parts=2, watched="whole", keep_raw=True, refers=3)
HISTORY: Family[Ended] = Family(name="history", record=Ended, parts=2, refers=4, younger=True)
PODS: Family[Pod] = Family(
    name="pods",
    record=Pod,
    parts=3,
    watched="by id",
    own=True,
    keep_unknown=True,
    compact=lambda: SharedLabels().shared,
    refers=5,
)
INTENT: Family[Intent] = Family(
    name="intent",
    record=Intent,
    parts=2,
    watched="whole",
    own=True,
    keep_unknown=True,
    compact=lambda: SharedIntents().shared,
    refers=6,
)
REALITY: Family[Glance] = Family(
    name="reality",
    record=Reality,
    parts=3,
    watched="by name",
    pause=0.1,
    compact=lambda: glance,
    dated=dated,
    refers=7,
)
NODES: Family[Node] = Family(name="nodes", record=Node, watched="whole", claimed=True, status=NodeStatus)
AGENTS: Family[Agent] = Family(name="agents", record=Agent, watched="whole")
RESERVED: Family[Reserved] = Family(name="reserved", record=Reserved, watched="whole", keep_raw=True)
FARMS: Family[Member] = Family(name="farms", record=Member, watched="whole", query="fa")
FAILSAFE: Family[Failsafe] = Family(name="failsafe", record=Failsafe, watched="whole", query="fa")

FAMILIES: dict[str, Family[Any]] = {
    family.name: family
    for family in (
        *(DEPLOYMENTS, ROLLOUTS, SERVICES, HISTORY, RCS, DAEMONSETS, JOBS, PODS, INTENT, REALITY),
        *(NODES, AGENTS, RESERVED, FARMS, FAILSAFE, WORK),
        *(RUNS, SCHEDULES, APPS, TRACKERS, JOB_TEMPLATES),
        Family(name=jobtemplates.STARTS, parts=2, watched="whole", younger=True),
        Family(name=jobtemplates.STARTED, record=Started, parts=2),
        Family(name="locks", watched="whole"),
        Family(name="names", record=str, parts=2),
        Family(name="status", record=ItemStatus, parts=2),
        Family(name="housekeeping", claimed=True),
        Family(name="catalog", claimed=True),
        Family(name="kubejobs", claimed=True, outside=True, status=JobStatus),
        Family(name="progressive", claimed=True, outside=True, status=ItemStatus),
        Family(name="manifests"),
        Family(name="signatures", record=Signature, parts=4),
        Family(name=access.FAMILY),
        Family(name=config.FAMILY),
        Family(name=config.HISTORY),
        Family(name=secrets.FAMILY),
        Family(name=secrets.VERSIONS),
        Family(name=secrets.GROUPS),
        Family(name="audit"),
        Family(name="meta"),
    )
}


def unknown(keys: Keys, found: Iterable[str]) -> list[str]:
    """Families of later versions, from the keys right below the cluster's prefix."""
    names = {key[len(keys.prefix) :].rstrip("/") for key in found}
    return sorted(names - FAMILIES.keys())


def owners() -> tuple[Family[Any], ...]:
    """Families whose records own pods."""
    return tuple(family for family in FAMILIES.values() if family.owns_pods)


def acting(name: str, record: Any) -> str:
    """The item, as ``<family>/<id>``, during which a record owns pods by itself; empty: it owns none."""
    during = FAMILIES[name].during
    return "" if during is None else during(record)


def actors() -> tuple[Family[Any], ...]:
    """Families whose records own pods during something else, and have no pods otherwise."""
    return tuple(family for family in FAMILIES.values() if family.during is not None)


def family_of(record: type[Any]) -> Family[Any]:
    """The family whose records have this type, for types that one family alone has."""
    return next(family for family in FAMILIES.values() if family.record is record)


def of(record: object) -> Family[Any]:
    """The family of a record that owns pods."""
    return next(family for family in owners() if family.record is type(record))


def owns_pods(name: str) -> bool:
    """Whether the records of a family, if this version knows it, own pods."""
    return name in FAMILIES and FAMILIES[name].owns_pods


def named(name: str) -> bool:
    """Whether people name the records of a family, if this version knows it."""
    return name in FAMILIES and FAMILIES[name].named


def past_of(family: str, name: str) -> str:
    """The name under which the history of an item of a family lies."""
    return past_name(family, name)


def reserved_labels() -> frozenset[str]:
    """Labels of pods that farmd sets and people may not choose."""
    own = {family.owner_label for family in owners()}
    return RESERVED_LABELS | own | {DEPLOYMENT_LABEL, SERVICE_LABEL}


def claimed() -> tuple[Family[Any], ...]:
    """Families that are kinds of work."""
    return tuple(family for family in FAMILIES.values() if family.claimed)


def outside() -> tuple[Family[Any], ...]:
    """Kinds of work whose items are objects of another system."""
    return tuple(family for family in FAMILIES.values() if family.outside)


def younger() -> tuple[Family[Any], ...]:
    """Families that clusters of earlier versions do not have."""
    return tuple(family for family in FAMILIES.values() if family.younger)


def cached() -> tuple[Family[Any], ...]:
    """Families that a farm keeps a copy of."""
    return tuple(family for family in FAMILIES.values() if family.cached)


def together() -> list[list[Family[Any]]]:
    """The families of which a farm keeps copies, by the queries that several share."""
    found: dict[str, list[Family[Any]]] = {}
    for family in cached():
        if family.query:
            found.setdefault(family.query, []).append(family)
    return list(found.values())


def spreading() -> tuple[Family[Any], ...]:
    """Families that may refer to manifests, in the order in which references spread (R24)."""
    referring = (family for family in FAMILIES.values() if family.refers)
    return tuple(sorted(referring, key=lambda family: (family.refers, family.name)))


def shards(keys: Keys, name: str) -> list[str]:
    """The 16 prefixes of a sharded family; a tree that is keyed by ids has no slash after the digit."""
    end = "/" if FAMILIES[name].watched == "by name" else ""
    return [f"{keys.tree(name)}{digit}{end}" for digit in HEX_DIGITS]


def sentinels(keys: Keys, wanted: Iterable[Family[Any]] | None = None) -> list[str]:
    """The keys of all sentinels of a new cluster, or of the wanted families."""
    proven = [family for family in (FAMILIES.values() if wanted is None else wanted) if family.proven]
    trees = [keys.tree(family.name) for family in proven]
    divided = [shard for family in proven if family.sharded for shard in shards(keys, family.name)]
    return [keys.sentinel(prefix) for prefix in trees + divided]


@cache
def form(keys: Keys, name: str) -> re.Pattern[str]:
    """The keys that records of the family can have."""
    family = FAMILIES[name]
    first = f"[{HEX_DIGITS}][^/]*" if family.sharded else "[^/]+"
    return re.compile(re.escape(keys.tree(name)) + first + "/[^/]+" * (family.parts - 1))


def well_formed(keys: Keys, name: str, key: str) -> bool:
    """Whether a record of the family can have this key; other writers may create any key."""
    return form(keys, name).fullmatch(key) is not None


def intent_places(keys: Keys, listed: Iterable[str]) -> list[Place]:
    """The places of the intents among these keys of their tree."""
    known = (key for key in listed if not is_sentinel(key) and well_formed(keys, "intent", key))
    return [keys.intent_parts(key) for key in known]


def decode(keys: Keys, name: str, entry: Entry) -> Any:
    """One record of a family, from its entry.

    Raises:
        RecordInvalid: the record does not decode, its id is not that of its key, or the key is impossible.
    """
    if not well_formed(keys, name, entry.key):
        raise RecordInvalid(f"{entry.key}: no record of {name} has such a key", key=entry.key)
    family = FAMILIES[name]
    assert family.record is not None
    if family.named:
        return decode_named(family.record, keys, entry).record
    record = family.record
    if entry.key.startswith(keys.revocations):
        return revocations.decode(keys, entry)
    if name == "status":
        of = FAMILIES.get(entry.key[len(keys.tree(name)) :].partition("/")[0])
        record = of.status if of is not None else record
    return codec.decode(record, entry.value, entry.key)
