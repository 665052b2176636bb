"""What the decision about a job is made from, and what it says; the same for both backends.

A job is a set of slots, each a type and an index. A member is what fills one: a pod of Kubernetes, or an
instance on a node. The plan knows no backend: where two backends differ, ``Traits`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from farmd.work.model import Blocked
from store.jobs import Job, Rule, Run, Success

Phase = Literal["held", "starting", "running", "succeeded", "failed", "unknown"]
Restart = Literal["never", "on-failure", "exit-code", "always"]
Cause = Literal["", "oom", "lost", "evicted", "preempted"]
Services = Literal["none", "shared", "each"]
Gang = Literal["none", "absent", "outdated", "waiting", "ready"]
State = Literal["waiting", "running", "restarting", "suspended", "succeeded", "failed", "deleting"]

EVERY = Success()
UNTOUCHED = Run()


class Slot(NamedTuple):
    """One place of a job: the name of a type as the job spells it, and an index from 0.

    A tuple, because plans of large arrays hash thousands of them.
    """

    type: str
    index: int  # type: ignore[assignment]  # in place of the tuple's own method

    def __str__(self) -> str:
        return f"{self.type}/{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaType:
    """One type of a job's slots.

    ``replicas``: how many slots it has. ``parallelism``: how many of them may have a member at a time; 0:
    all. ``restart``: what follows when a member ends badly. ``never``: its slot failed. ``on-failure`` and
    ``always``: another attempt. ``exit-code``: another attempt after a code of 128 or more, which a signal
    gives; its slot failed after a lower one.
    """

    name: str
    replicas: int = 1
    parallelism: int = 0
    restart: Restart = "on-failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What people ask of a job, as far as the plan needs it.

    ``types`` in the order of creation. ``gang``: members are created all together or not at all. ``peers``:
    members know one another, so a retry restarts all. ``services``: names that members are reached by: none,
    one for the job, one for each slot. ``success``: which slots must have ended well. ``success_index``: only
    this index of the types of ``success`` counts; None: all do. ``rules``: what follows a member's failure;
    the first that fits decides before ``restart`` does.

    ``spared``: types whose members may fail for good, unless their slots decide about success.
    ``backoff_limit``: the job fails at that many counted retries (0: at the first), or, with
    ``allows_limit``, at the one after; None: never.
    ``active_deadline``: seconds after ``Run.started`` when it fails; None: never. ``ttl``: seconds after
    ``Run.finished`` when it is deleted; None: never. ``clean``: the members that go once it is finished.
    ``restart_scope``: what a retry restarts. ``on_lost``: whether a member on a lost node is replaced at once
    or waited for (R21). ``gang_timeout``: seconds for which held members wait for the others of a gang.
    ``suspend``, ``deleting``: what people asked last. ``invalid``: why no member could ever be created; the
    job fails with it.
    """

    id: str
    name: str
    types: tuple[ReplicaType, ...] = ()
    gang: bool = False
    peers: bool = False
    services: Services = "none"
    success: Success = EVERY
    success_index: int | None = None
    rules: tuple[Rule, ...] = ()
    spared: tuple[str, ...] = ()
    backoff_limit: int | None = 6
    allows_limit: bool = False
    active_deadline: float | None = None
    ttl: float | None = None
    clean: Literal["none", "running", "all"] = "none"
    restart_scope: Literal["slot", "job"] = "slot"
    on_lost: Literal["replace", "wait"] = "replace"
    gang_timeout: float = 60.0
    suspend: bool = False
    deleting: bool = False
    invalid: str = ""

    def type(self, name: str) -> ReplicaType | None:
        """The type with that name; None: the job has none."""
        return next((each for each in self.types if each.name == name), None)

    @property
    def size(self) -> int:
        """How many slots it has."""
        return sum(each.replicas for each in self.types)


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What fills a slot. A struct, because each look at a job makes all of its members anew.

    ``attempt``: the attempt of its slot that it was made for. ``id`` and ``version`` name it for its
    backend: uid and resourceVersion of a pod; ``<node>/<instance>`` and ModifyIndex of an instance.
    ``phase``: ``held`` is ready and waits for its release, ``starting`` does not run yet, ``running`` runs,
    ``succeeded`` and ``failed`` ended for good, of ``unknown`` nobody can tell. ``hold``: nobody released
    it yet, whatever its phase is. ``leaving``: its removal is under way, so it counts as nothing. ``exit``:
    the exit code of a member that failed, 128 and the signal if one ended it; None: it has none. ``cause``:
    why it failed where that is not the program's own doing. A member on a lost node is ``unknown`` with the
    cause ``lost`` from when what ran there must have stopped. ``restarts``: how often its program was
    started again in place. ``at``, ``ended``: when it was created and when it ended (seconds since the
    epoch; 0: unknown, or not yet). ``message``: what it said of its end, or why it does not run, for people.
    """

    slot: Slot
    attempt: int = 0
    id: str = ""
    version: str = ""
    phase: Phase = "starting"
    hold: bool = False
    leaving: bool = False
    exit: int | None = None
    cause: Cause = ""
    restarts: int = 0
    at: float = 0.0
    ended: float = 0.0
    message: str = ""

    @property
    def over(self) -> bool:
        """Whether it ended for good, so that nothing of it runs any more."""
        return self.phase in ("succeeded", "failed")


@dataclass(frozen=True, slots=True)
class Room:
    """The slots that have a place now; None: all, because the backend places members later.

    ``why``: one line for people on why the others have none.
    """

    slots: frozenset[Slot] | None = None
    why: str = ""


ANYWHERE = Room()


@dataclass(frozen=True, slots=True)
class Need:
    """The fact that a decision lacks: which of these slots, in the order of creation, have a place now."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Where the two backends differ.

    ``attempt_in_name``: members of two attempts of a slot have different names, so the next one need not
    wait for the object of an ended one to vanish. ``cascade``: members vanish with the job by themselves.
    ``holds``: members of a gang are created on hold and released together. ``tells_removed``: of a member
    that was removed it is still told whether it ended well before. ``batch``: how many ends of members one
    change of the run may take in.
    """

    attempt_in_name: bool
    cascade: bool
    holds: bool
    tells_removed: bool
    batch: int


CONSUL = Traits(attempt_in_name=True, cascade=False, holds=True, tells_removed=True, batch=8)
KUBERNETES = Traits(attempt_in_name=False, cascade=True, holds=False, tells_removed=False, batch=500)

ServiceKey = Slot | None
"""A service of a job: that of a slot, or (None) the one that all members share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One job at one moment.

    ``run``: what of it is durable; in Kubernetes ``started``, ``finished`` and ``outcome`` come from the
    job's status. ``members``: those whose slot is known, also those of types and indexes that the job has
    no more. ``strays``: the job's own objects whose slot nobody can tell; they count as nothing and go with
    the job. ``pending``: slots whose creation was sent and not seen yet. ``room``: which slots have a
    place; None: the plan may ask. ``gang``: the state of the object that a scheduler of gangs reads;
    ``none``: there is no such object. ``altered``: types that get no members, because their template was
    changed under those that run. ``services``: those that exist. ``now``: seconds since the epoch, by
    the backend's clock. ``frozen``: the evidence of a freeze (R18); empty: there is none. ``commanded``: a
    person wrote the record after the freeze began.
    """

    job: JobSpec
    traits: Traits
    run: Run = UNTOUCHED
    members: tuple[Member, ...] = ()
    strays: tuple[Member, ...] = ()
    pending: frozenset[Slot] = frozenset()
    room: Room | None = None
    gang: Gang = "none"
    altered: tuple[str, ...] = ()
    services: frozenset[ServiceKey] = frozenset()
    now: float = 0.0
    frozen: str = ""
    commanded: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """The slots of one type: ``starting`` and ``running`` members, slots that ended well (``succeeded``), and
    members or slots that ended badly (``failed``).
    """

    starting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class JobSummary:
    """What people are told of a job: ``reason`` is a word (CamelCase), ``message`` one line."""

    state: State = "waiting"
    reason: str = ""
    message: str = ""
    counts: Mapping[str, Count] = field(default_factory=dict)
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now. A backend carries it out in the order of these fields, and stops where one fails.

    ``run``: the run to write before anything else; None: it stays. ``gang``: what happens to the object of
    a gang. ``drop_services`` and ``create_services`` go before members, which need their names. ``remove``:
    members to delete, each only in the version that was seen. ``create``: slots that get a member of the
    attempt that ``attempt_of(run, slot)`` tells. ``release``: held members that may start. ``give_back``:
    ``remove`` gives the places of a gang back; the next try waits for a time that the worker draws.
    ``delete_job``: the job's own record. ``status``: what people read. ``after``: seconds until time alone
    changes the plan; None: it does not. ``blocked``: what holds the rest.
    """

    run: Run | None = None
    gang: Literal["", "create", "update", "delete"] = ""
    drop_services: tuple[ServiceKey, ...] = ()
    create_services: tuple[ServiceKey, ...] = ()
    remove: tuple[Member, ...] = ()
    create: tuple[Slot, ...] = ()
    release: tuple[Member, ...] = ()
    give_back: bool = False
    delete_job: bool = False
    status: JobSummary = JobSummary()
    after: float | None = None
    blocked: Blocked | None = None

    @property
    def fence(self) -> bool:
        """Whether a claim that wrote nothing to the job yet must write its status first (R16)."""
        return self.run is not None or self.changes

    @property
    def changes(self) -> bool:
        """Whether it changes anything besides the run and the status."""
        named = (self.drop_services, self.create_services, self.remove, self.create, self.release)
        return any(named) or bool(self.gang) or self.delete_job

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not self.fence

    @property
    def ends(self) -> bool:
        """Whether the job's record goes now."""
        return self.delete_job


def attempt_of(run: Run, slot: Slot) -> int:
    """The attempt that a slot's member must have: its own, or that of the job where that is higher."""
    if slot.type not in run.slots:
        return run.attempt
    tried = run.slots[slot.type].get(str(slot.index))
    return max(run.attempt, tried.attempt if tried is not None else 0)


# A job's record in Consul as the plan sees it, which knows no manifests and no labels.


def described(job: Job) -> JobSpec:
    """A job's record in Consul as the plan sees it."""
    types = (
        ReplicaType(
            name=each.name, replicas=each.replicas, parallelism=each.parallelism, restart=each.restart
        )
        for each in job.types
    )
    return JobSpec(
        id=job.id,
        name=job.name,
        types=tuple(types),
        gang=job.gang,
        peers=job.peers,
        success=job.success,
        rules=tuple(job.rules),
        backoff_limit=job.backoff_limit,
        active_deadline=job.active_deadline,
        ttl=job.ttl,
        clean=job.clean,
        restart_scope=job.restart_scope,
        on_lost=job.on_lost,
        gang_timeout=job.gang_timeout,
        suspend=job.suspend,
        deleting=job.deleting,
    )
