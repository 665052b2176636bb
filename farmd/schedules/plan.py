"""What to do about one schedule: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from farmd.schedules import times
from farmd.work import model
from farmd.work.named import RecordPlan
from store.errors import InputInvalid
from store.schedules import Fired, Keep, Outcome, Schedule

FAILURES_TOLD = 2
"""So many jobs in a row that failed are worth a person's attention."""
STOPPED_AT_ONCE = 10
"""One transaction has room for the deletions of so many jobs."""
LOOKS = (1.0, 60.0)
"""A job that runs is looked at again after a quarter of its age, within these bounds."""


class End(NamedTuple):
    """How a job ended, and when."""

    outcome: Outcome
    reason: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A schedule, how those of its jobs ended that it does not know of yet, and the time.

    ``ahead``: for how many seconds this farm's clock is ahead of ``now``, which is Consul's.
    """

    schedule: Schedule
    now: float
    ends: Mapping[str, End]
    frozen: str | None = None
    ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan(RecordPlan):
    """The action writes ``wanted`` in place of the schedule, and ``why`` into the audit.

    With ``fire`` it makes the job of that time, and deletes the jobs ``stop``, in the same transaction.
    ``next`` is when time alone changes the plan, ``upcoming`` the schedule's next time.
    """

    wanted: Schedule | None = None
    why: str = ""
    fire: float | None = None
    stop: tuple[str, ...] = ()
    next: float | None = None
    upcoming: float = 0.0
    overrun: bool = False


def decide(seen: Snapshot) -> Plan:
    """Note what ended, make the job of the time that has come or say why not, and delete old jobs."""
    if seen.schedule.deleting:
        return Plan(ends=True)
    try:
        plan = _decide(seen, ended(seen.schedule, seen.ends, seen.now))
    except InputInvalid as error:
        return Plan(blocked=model.blocked("invalid", error.message))
    if plan.action and seen.frozen is not None:
        return Plan(blocked=model.frozen(seen.frozen))
    return plan


def _decide(seen: Snapshot, known: Schedule) -> Plan:
    if known.timing != known.times:
        begins = seen.now if known.timing else (known.created or seen.now)
        wanted = replace(known, timing=known.times, last=max(known.last, begins))
        return Plan("schedule.begin", wanted=wanted, why="its times count from now on")
    due = None if known.disabled else times.due(known, seen.now)
    if due is not None and (plan := _due(known, due)) is not None:
        return plan
    if known != seen.schedule:
        return Plan("schedule.end", wanted=known, why=_told(seen.ends))
    if old := beyond(known.fired, known.keep):
        kept = [each for each in known.fired if each is not old]
        why = f"more ended jobs than it keeps: {old.name}"
        return Plan("schedule.prune", wanted=replace(known, fired=kept), why=why, stop=(old.job,))
    return _idle(known, seen.now)


def _due(known: Schedule, due: times.Due) -> Plan | None:
    """What follows from a time that has come; None: what runs is being stopped, and comes first."""
    moved = replace(
        known, last=due.until, missed=known.missed + due.missed, missing=known.missing + due.missed
    )
    lost = f"{due.missed} times were missed" if due.missed else ""
    if due.newest is None:
        return Plan("schedule.miss", wanted=moved, why=lost)
    active, at = known.active, times.shown(due.newest, "UTC")
    if known.full or (active and known.overlap == "forbid"):
        runs = f"{len(active)} of its jobs run" if known.full else f"{active[-1].name} runs"
        why = f"{at}: {runs} still{lost and f', and {lost}'}"
        return Plan("schedule.skip", wanted=replace(moved, skipped=known.skipped + 1), why=why)
    if active and known.overlap == "replace":
        stop = tuple(each.job for each in active if not each.stopping)[:STOPPED_AT_ONCE]
        if not stop:
            return None
        fired = [replace(each, stopping=each.stopping or each.job in stop) for each in known.fired]
        return Plan(
            "schedule.stop", wanted=replace(known, fired=fired), why=f"the job of {at} is due", stop=stop
        )
    fresh = moved if due.missed else replace(moved, missing=0)
    return Plan("schedule.start", wanted=fresh, why=lost or f"it is due at {at}", fire=due.newest)


def _idle(known: Schedule, now: float) -> Plan:
    shift = times.offset(known)
    coming = None if known.disabled else next(times.after(known, max(known.last, now - shift)), None)
    upcoming = 0.0 if coming is None else coming + shift
    looks = [now + min(max((now - each.due) / 4, LOOKS[0]), LOOKS[1]) for each in known.active]
    soon = min([*looks, *([upcoming] if upcoming else [])], default=None)
    return Plan(next=soon, upcoming=upcoming, overrun=_overruns(known, now))


def _overruns(known: Schedule, now: float) -> bool:
    """Whether a job runs for longer than to the time after its own, or too many run side by side."""
    if known.overlap == "allow" or not known.active:
        return known.full
    return next(times.after(known, known.active[0].due), now) + times.offset(known) < now


def ended(schedule: Schedule, ends: Mapping[str, End], now: float) -> Schedule:
    """The schedule that knows of these ends."""
    if not ends:
        return schedule
    fired, failures, succeeded = [], schedule.failures, schedule.succeeded
    for each in schedule.fired:
        end = ends.get(each.job)
        if end is None or each.outcome:
            fired.append(each)
            continue
        outcome: Outcome = "replaced" if each.stopping and end.outcome == "deleted" else end.outcome
        failures = {"failed": failures + 1, "succeeded": 0}.get(outcome, failures)
        fired.append(replace(each, outcome=outcome, reason=end.reason[:200], ended=end.at or now))
        if outcome == "succeeded":
            succeeded = max(succeeded, end.at or now)
    return replace(schedule, fired=fired, failures=failures, succeeded=succeeded)


def beyond(fired: list[Fired], keep: Keep) -> Fired | None:
    """The oldest job beyond those that are kept of its sort; None: all are kept."""
    good = [each for each in fired if each.outcome == "succeeded"]
    bad = [each for each in fired if each.outcome not in ("", "succeeded")]
    return next((kind[0] for kind, most in ((good, keep.done), (bad, keep.failed)) if len(kind) > most), None)


def state(schedule: Schedule, plan: Plan) -> tuple[str, str]:
    """The state of a schedule, and its reason."""
    if plan.blocked is not None:
        return "frozen" if plan.blocked.frozen else "blocked", plan.blocked.text
    if schedule.disabled:
        return "disabled", ""
    if schedule.failures >= FAILURES_TOLD:
        last = next((each for each in reversed(schedule.fired) if each.outcome == "failed"), None)
        text = f": {last.name}: {last.reason}" if last is not None else ""
        return "failing", f"{schedule.failures} jobs in a row failed{text}"
    if plan.overrun and schedule.full:
        return "overrun", f"{len(schedule.active)} of its jobs run, so its times are skipped until one ends"
    if plan.overrun:
        return "overrun", f"{schedule.active[0].name} still runs at the next time"
    if schedule.missing:
        return "missed", f"{schedule.missing} times passed without a job"
    return ("running", schedule.active[-1].name) if schedule.active else ("converged", "")


def _told(ends: Mapping[str, End]) -> str:
    return "; ".join(
        f"job {job}: {end.outcome}{f' ({end.reason})' if end.reason else ''}" for job, end in ends.items()
    )
