"""A job, its members and a backend in memory that carries plans out."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from farmd.jobs.facts import (
    ANYWHERE,
    CONSUL,
    KUBERNETES,
    JobSpec,
    Member,
    Plan,
    ReplicaType,
    Slot,
    Snapshot,
    Traits,
    attempt_of,
)
from farmd.jobs.plan import decide
from store.jobs import Run

NOW = 1_000_000.0


def spec(*types: ReplicaType, **fields: Any) -> JobSpec:
    """A job, by default of three workers."""
    return JobSpec(id="0a", name="bert", types=types or (workers(3),), **fields)


def workers(replicas: int = 3, **fields: Any) -> ReplicaType:
    """A type of that many workers."""
    return ReplicaType(name="worker", replicas=replicas, **fields)


def member(index: int, phase: str = "running", *, kind: str = "worker", **fields: Any) -> Member:
    """The member of one slot."""
    attempt = fields.get("attempt", 0)
    name = f"{kind}-{index}~{attempt}"
    return Member(slot=Slot(kind, index), phase=phase, **{"id": name, "at": NOW, **fields})  # type: ignore[arg-type]


def failed(index: int, code: int | None = 1, **fields: Any) -> Member:
    """A member that failed with this code."""
    return member(index, "failed", exit=code, **fields)


def shot(job: JobSpec, *members: Member, **fields: Any) -> Snapshot:
    """A snapshot on nodes with room everywhere, unless told otherwise."""
    defaults: dict[str, Any] = {"traits": CONSUL, "room": ANYWHERE, "now": NOW, "run": Run(started=NOW)}
    return Snapshot(job=job, members=members, **{**defaults, **fields})


def plan(job: JobSpec, *members: Member, **fields: Any) -> Plan:
    """The plan for such a snapshot."""
    found = decide(shot(job, *members, **fields))
    assert isinstance(found, Plan)
    return found


class World:
    """One job on a backend in memory: what a plan says happens at once."""

    def __init__(self, job: JobSpec, traits: Traits = CONSUL) -> None:
        self.job = job
        self.traits = traits
        self.run = Run()
        self.members: dict[str, Member] = {}
        self.services: set[Slot | None] = set()
        self.gang = "absent" if job.gang and not traits.holds else "none"
        self.room = ANYWHERE
        self.now = NOW
        self.frozen = ""
        self.commanded = False
        self.gone = False
        self.created: list[tuple[Slot, int]] = []
        self.lingers = False
        self._ids = itertools.count()

    def snapshot(self) -> Snapshot:
        """The job as it is."""
        return Snapshot(
            job=self.job,
            traits=self.traits,
            run=self.run,
            members=tuple(self.members.values()),
            room=self.room,
            gang=self.gang,  # type: ignore[arg-type]
            services=frozenset(self.services),
            now=self.now,
            frozen=self.frozen,
            commanded=self.commanded,
        )

    def decide(self) -> Plan:
        """The plan now."""
        found = decide(self.snapshot())
        assert isinstance(found, Plan)
        return found

    def apply(self, plan: Plan) -> None:
        """Carry a plan out, in the order of its fields."""
        if plan.run is not None:
            self.run = plan.run
        if plan.gang:
            self.gang = "ready" if plan.gang == "create" else "absent"
        self.services -= set(plan.drop_services)
        self.services |= set(plan.create_services)
        for each in plan.remove:
            if self.lingers:
                self.members[each.id] = replace(each, leaving=True)
            else:
                del self.members[each.id]
        for slot in plan.create:
            self.create(slot)
        for each in plan.release:
            self.change(each, hold=False, phase="starting")
        self.gone = self.gone or plan.delete_job

    def create(self, slot: Slot) -> Member:
        """A new member of a slot."""
        attempt = attempt_of(self.run, slot)
        hold = self.job.gang and self.traits.holds
        name = f"{slot}~{attempt}.{next(self._ids)}"
        made = Member(slot=slot, attempt=attempt, id=name, at=self.now, hold=hold)
        self.members[name] = made
        self.created.append((slot, attempt))
        return made

    def change(self, each: Member, **fields: Any) -> None:
        """What a member has become."""
        self.members[each.id] = replace(self.members[each.id], **fields)

    def step(self) -> Plan:
        """Decide once and carry it out."""
        found = self.decide()
        self.apply(found)
        return found

    def settle_held(self) -> Plan:
        """The same, where members that are on hold become ready."""
        for _ in range(3):
            found = self.settle()
            for each in list(self.members.values()):
                if each.hold:
                    self.change(each, phase="held")
        return found

    def settle(self, limit: int = 100) -> Plan:
        """Decide and carry out until nothing is left to write."""
        for _ in range(limit):
            found = self.step()
            if found.empty or self.gone:
                return found
        raise AssertionError(f"no fixpoint: {found}")


__all__ = ["CONSUL", "KUBERNETES", "NOW", "World", "failed", "member", "plan", "shot", "spec", "workers"]
