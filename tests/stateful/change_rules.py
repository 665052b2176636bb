"""What holds of every change of pods, whoever's they are: owned, told, whole, thawed, proven."""

from __future__ import annotations

from collections.abc import Iterable

from store.audit import Audit
from store.failsafe import Failsafe, frozen
from store.locks import Holder
from store.reality import Intent
from store.work import Work
from tests.stateful.moment import Look, Moment

OWNED = ("rcs", "nodes", "daemonsets", "manifests", "rollouts", "deployments", "apps")
MANAGING = ("rollouts", "deployments")


def changes(look: Look, moment: Moment) -> Iterable[str]:
    """Judge one transaction of a farm."""
    yield from _owned(look, moment)
    yield from _collected(look, moment)
    if not (moment.added or moment.gone or moment.changed or moment.intents):
        return
    if len(moment.audits) != 1:
        yield f"changed pods with {len(moment.audits)} audit records"
        return
    audit = moment.audits[0]
    yield from _told(look, moment, audit)
    yield from _whole(look, moment)
    yield from _counting(look, moment)
    yield from _thawed(look, moment, audit)


def _owned(look: Look, moment: Moment) -> Iterable[str]:
    """A fenced-out farm changes nothing: who writes holds the item's lock at that moment."""
    for audit in moment.audits:
        if audit.actor != f"farm/{moment.farm}":
            yield f"wrote in the name of {audit.actor}"
        if audit.kind not in OWNED:
            yield f"wrote an audit record of {audit.kind}"
        if audit.kind == "manifests":
            continue  # one claim for all of them
        lock = moment.before[look.keys.lock(audit.kind, audit.id)]
        holder = Holder.parse(lock.value or b"").id if lock is not None and lock.session else "nobody"
        if holder != moment.farm:
            yield f"wrote {audit.action} of {audit.kind}/{audit.id}, whose lock {holder} holds"


def _told(look: Look, moment: Moment, audit: Audit) -> Iterable[str]:
    """The audit lists exactly what was changed, and counts it (R25)."""
    mended = {p for p in moment.intents if p not in {pod[1:] for pod in moment.added | moment.gone}}
    altered = {pod[1:] for pod in moment.changed} | mended
    for what, said, done in (
        ("placed", audit.placed, moment.added),
        ("removed", audit.removed, moment.gone),
        ("changed", audit.relabelled, {(_owner(look, audit, place), *place) for place in altered}),
    ):
        listed = {tuple((p if p.count("/") == 2 else f"{audit.id}/{p}").split("/")) for p in said}
        if listed != done:
            yield f"{what} {sorted(done)}, the audit says {sorted(listed)}"
    before = moment.counts[audit.id]
    after = before + len(moment.added) - len(moment.gone)
    if (audit.before.get("pods"), audit.after.get("pods")) != (before, after):
        yield f"from {before} to {after} pods, the audit says {audit.before} to {audit.after}"


def _owner(look: Look, audit: Audit, place: tuple[str, str]) -> str:
    """Whose pod was changed; a rollout or a deployment changes those of several owners."""
    if audit.kind not in MANAGING:
        return audit.id
    return next(o for o in look.owners() if look.kv.get(look.keys.pod(o, *place)) is not None)


def _whole(look: Look, moment: Moment) -> Iterable[str]:
    """A pod and its intent change together or not at all."""
    pods = moment.added | moment.gone | moment.changed
    for place in sorted({(node, instance) for _, node, instance in pods} | moment.intents):
        if line := look.disagreement(place):
            yield line


def _counting(look: Look, moment: Moment) -> Iterable[str]:
    """No farm lowers the counter of restarts of a pod that stays (R28)."""
    for place in sorted(moment.intents):
        key = look.keys.intent(*place)
        before, after = look.record(Intent, moment.before[key]), look.at(Intent, key)
        if before is not None and after is not None and after.restart < before.restart:
            yield f"{place} goes back from restart {before.restart} to {after.restart}"


def _thawed(look: Look, moment: Moment, audit: Audit) -> Iterable[str]:
    """While frozen nothing is removed, moved or replaced, but by a person's command (R18).

    Mass ill health holds nothing that goes back (R19).
    """
    freeze = held(look, moment, audit)
    if freeze is None or not (moment.gone or moment.changed):
        return
    work = look.at(Work, look.keys.work(audit.kind, audit.id))
    back = work is not None and work.rollout is not None and work.rollout.back
    if work is not None and work.deployment is not None:
        back = any(goal.back for goal in work.deployment.goals.values())
    if back and freeze.evidence.startswith("health"):
        return
    touched = sorted(moment.gone | moment.changed)
    yield f"{audit.action} of {audit.name} changed {touched} while frozen: {freeze}"


def held(look: Look, moment: Moment, audit: Audit) -> Failsafe | None:
    """The freeze that the farm knew of, if nobody said anything of the item since it began (R18)."""
    key = look.keys.failsafe(audit.kind)
    pair, record = moment.before[key], moment.before[look.keys.record(audit.kind, audit.id)]
    if pair is None or record is None or record.modify_index > pair.create_index:
        return None
    if look.troubled(moment.farm) or not look.settled(key):
        return None
    freeze = look.record(Failsafe, pair)
    return freeze if frozen(freeze, look.clock.now()) else None


def _collected(look: Look, moment: Moment) -> Iterable[str]:
    """A manifest goes only condemned, and while nothing refers to it (R24)."""
    for op in moment.writes:
        if not op.key.startswith(look.keys.tree("manifests")) or look.kv.get(op.key) is not None:
            continue
        before, digest = moment.before[op.key], look.keys.last_part(op.key).encode()
        if before is not None and not before.flags:
            yield f"collected {op.key}, which was not condemned"
        for family in ("rcs", "daemonsets", "work", "pods", "intent"):
            for key in look.under(family):
                pair = look.kv.get(key)
                if pair is not None and digest in (pair.value or b""):
                    yield f"collected {op.key}, to which {key} refers"
