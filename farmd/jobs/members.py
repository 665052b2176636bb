"""What each member of a job is to its slot, and what follows from its end.

What must never break: a slot has one member that counts, whatever the order in which members are listed; a
member that leaves, or whose slot the job has no more, counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from farmd.jobs.facts import JobSpec, Member, Slot, Snapshot, attempt_of
from store.indexes import Indexes
from store.jobs import Rule, Run

Fate = Literal["stays", "done", "retry", "replace", "restart-job", "fail"]
"""What follows from a member's state: nothing; its slot is done; another attempt that counts against the
limit; one that does not; a new attempt of the whole job; its slot failed."""

RETRYABLE_FROM = 128
_INFRASTRUCTURE = frozenset({"lost", "evicted", "preempted"})


@dataclass(frozen=True, slots=True)
class Board:
    """The members of a job, sorted.

    ``live``: the one member that counts for each slot. ``surplus``: live members that must go whatever comes:
    of slots that the job has no more or that are done, and second members of one attempt. ``outdated``:
    members of earlier attempts. ``occupied``: slots that cannot get a member yet, because a former one
    runs still, or bears the name that the next one would get.
    """

    live: Mapping[Slot, Member]
    surplus: tuple[Member, ...]
    outdated: tuple[Member, ...]
    occupied: frozenset[Slot]

    def first(self, fits: Callable[[Member], bool]) -> Member | None:
        """The first member that counts and fits, in the order of slots; None: there is none."""
        return next((member for member in self.live.values() if fits(member)), None)


def over(run: Run) -> dict[str, Indexes]:
    """The slots that get no member any more, by type: those that are done, and those that were given up."""
    names = {*run.done, *run.given_up}
    return {name: Indexes(run.done.get(name, ""), run.given_up.get(name, "")) for name in names}


def sort(shot: Snapshot, run: Run, closed: Mapping[str, Indexes]) -> Board:
    """Sort the members of a snapshot by what ``run`` says; ``closed`` are its slots that are over."""
    slots: dict[Slot, list[Member]] = {}
    surplus: list[Member] = []
    replicas = {kind.name: kind.replicas for kind in shot.job.types}
    for member in shot.members:
        slot = member.slot
        known = 0 <= slot.index < replicas.get(slot.type, 0)
        if known and not is_closed(closed, slot):
            slots.setdefault(slot, []).append(member)
        elif not member.leaving and not (known and member.over):  # an end that was taken in stays
            surplus.append(member)
    live: dict[Slot, Member] = {}
    outdated: list[Member] = []
    occupied: set[Slot] = set()
    for slot in ordered(shot.job, slots):
        found, wanted = slots[slot], attempt_of(run, slot)
        counting = [each for each in found if not each.leaving]
        if len(counting) == len(found) == 1 and found[0].attempt >= wanted:  # as most slots have
            live[slot] = found[0]
            continue
        counting.sort(key=_precedence)
        current = [each for each in counting if each.attempt >= wanted]
        if current:
            live[slot] = current[0]
            surplus += current[1:]
        outdated += [each for each in counting if each.attempt < wanted]
        if any(_occupies(shot, each, wanted) for each in found if each is not live.get(slot)):
            occupied.add(slot)
    return Board(live, tuple(sorted(surplus, key=identity)), tuple(outdated), frozenset(occupied))


def is_closed(closed: Mapping[str, Indexes], slot: Slot) -> bool:
    """Whether a slot gets no member any more."""
    return slot.index in closed.get(slot.type, ())


def exists(job: JobSpec, slot: Slot) -> bool:
    """Whether the job has the slot."""
    kind = job.type(slot.type)
    return kind is not None and 0 <= slot.index < kind.replicas


def ordered(job: JobSpec, slots: Iterable[Slot]) -> list[Slot]:
    """Slots in the order of creation: types as declared, then by index."""
    ranks = {each.name: rank for rank, each in enumerate(job.types)}
    return sorted(slots, key=lambda slot: (ranks.get(slot.type, len(ranks)), slot.index))


def _precedence(member: Member) -> tuple[object, ...]:
    """The highest attempt first; of one attempt the member that succeeded, else the oldest."""
    return -member.attempt, member.phase != "succeeded", member.at, member.id


def identity(member: Member) -> tuple[object, ...]:
    """A member's place among all, whatever order they are listed in."""
    return member.slot, member.attempt, member.id


def _occupies(shot: Snapshot, member: Member, wanted: int) -> bool:
    """Whether a member that does not count keeps its slot from getting the next one."""
    named_alike = not shot.traits.attempt_in_name or member.attempt == wanted
    return named_alike or not member.over


def ends(job: JobSpec, board: Board) -> Iterator[tuple[Member, Fate]]:
    """The members whose state changes their slot, in the order of slots, and what follows."""
    for member in board.live.values():
        if (follows := fate(job, member)) != "stays":
            yield member, follows


def fate(job: JobSpec, member: Member) -> Fate:
    """What follows from the state of a member that counts."""
    if member.phase == "succeeded":
        return "done"
    gone = member.phase == "unknown" and member.cause == "lost" and job.on_lost == "replace"
    if member.phase != "failed" and not gone:
        return "stays"
    for rule in job.rules:
        if fits(rule, member):
            return _BY_ACTION[rule.action]
    if infrastructure(member):
        return "replace"
    return "retry" if _retryable(job, member) else "fail"


_BY_ACTION: Mapping[str, Fate] = {
    "fail-job": "fail",
    "restart": "retry",
    "restart-job": "restart-job",
    "ignore": "replace",
}


def fits(rule: Rule, member: Member) -> bool:
    """Whether a rule is about this member's failure."""
    if rule.types and member.slot.type not in rule.types:
        return False
    if not rule.exit_codes and not rule.reasons:
        return True
    codes = {shell_code(code) for code in rule.exit_codes}
    return (member.exit is not None and member.exit in codes) or member.cause in rule.reasons


def shell_code(code: int) -> int:
    """An exit code as a shell tells it: 128 and the signal in place of minus the signal."""
    return 128 - code if code < 0 else code


def infrastructure(member: Member) -> bool:
    """Whether a member failed by no doing of its program: its retry is not counted."""
    return member.cause in _INFRASTRUCTURE or (member.exit is None and member.cause != "oom")


def _retryable(job: JobSpec, member: Member) -> bool:
    kind = job.type(member.slot.type)
    restart = kind.restart if kind is not None else "never"
    if restart == "exit-code":
        return member.cause == "oom" or (member.exit or 0) >= RETRYABLE_FROM
    return restart in ("on-failure", "always")


def retries(job: JobSpec, run: Run, board: Board) -> int:
    """The retries that count against the limit, with those in place of members that run still."""
    again = (each for each in board.live.values() if each.restarts and each.phase == "running")
    return run.restarts + sum(counted_in_place(job, member) for member in again)


def counted_in_place(job: JobSpec, member: Member) -> int:
    """How many restarts of a member in its place count against the limit; those of ``never`` do not."""
    kind = job.type(member.slot.type)
    return 0 if kind is None or kind.restart == "never" else member.restarts
