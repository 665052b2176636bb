"""Finds freezes, items that are blocked, and items whose state is lost, with their reasons."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec

from farmd import kinds
from farmd.doctor.model import Finding, Removal
from farmd.doctor.survey import Survey
from store import codec
from store.apps import DispatchState
from store.deployments import DeploymentState
from store.errors import RecordInvalid
from store.failsafe import Failsafe, frozen
from store.families import APPS, DEPLOYMENTS, FAMILIES, ROLLOUTS, decode, named, owns_pods
from store.farms import Member
from store.rollouts import RolloutState, RolloutStatus
from store.status import ItemStatus
from store.work import STATES, Work


def check(survey: Survey) -> list[Finding]:
    """Check freezes and blocked items."""
    return [*_frozen(survey), *_blocked(survey)]


def _frozen(survey: Survey) -> Iterator[Finding]:
    for entry, record in survey.decoded("failsafe", Failsafe):
        if frozen(record, survey.now):
            kind = survey.keys.last_part(entry.key)
            yield Finding(
                "frozen",
                survey.short(entry.key),
                f"removals of {kind} are frozen: {record.evidence}{_unseen(survey, kind)}",
                f"remove the cause, or if it is intended: farmctl failsafe clear {kind}"
                f" --evidence {shlex.quote(record.evidence)} --for 10m --reason WHY",
            )


def _unseen(survey: Survey, kind: str) -> str:
    """Why the freeze of a kind outlives its cause, if no farm can see that the cause is over."""
    known = kinds.KINDS.get(kind)
    if known is None or not known.outside:
        return ""
    farms = [member for _, member in survey.decoded("farms", Member)]
    if any(kind in member.kinds and member.clusters for member in farms):
        return ""
    return f"; no live farm works in {known.outside}, so the freeze lasts until one does"


def _blocked(survey: Survey) -> Iterator[Finding]:
    names = {entry.key: record.name for entry, record in survey.named()}
    tree = survey.keys.tree("status")
    for entry, status in survey.decoded("status", ItemStatus):
        kind, _, item = entry.key[len(tree) :].partition("/")
        key = survey.keys.record(kind, item)
        # A record that does not decode is a finding of its own, and no command shows more.
        stale = named(kind) and (
            key not in names or status.record not in {0, survey.trees[kind][key].modify_index}
        )
        if status.state == "blocked" and not stale:
            name = status.name or names.get(key, item)
            title = status.name or kinds.title(kind, name)
            found = status.name or survey.short(entry.key)
            yield Finding("blocked", found, f"{title}: {status.reason}", _look(kind, name))


def _look(kind: str, name: str) -> str:
    """The command that shows more."""
    known = kinds.KINDS.get(kind)
    if known is not None and known.shown:
        return f"{known.shown} {name}"
    if known is None or not known.noun:
        return "remove the reason"
    return f"farmctl {known.noun} {'explain' if owns_pods(kind) else 'describe'} {name}"


# Rollouts, deployments and apps that began, as their status says, and whose state is missing or empty.
# Nothing says how far they are, so their farms leave them alone until a person decides.


def check_states(survey: Survey) -> list[Finding]:
    """The findings; none while the records themselves are in doubt."""
    return [*_findings(survey)] if survey.proven() else []


def _findings(survey: Survey) -> Iterator[Finding]:
    tree = survey.keys.tree("status")
    for entry in survey.well_formed("status"):
        kind, _, item = entry.key[len(tree) :].partition("/")
        record = survey.trees[kind].get(survey.keys.record(kind, item)) if kind in STATES else None
        if record is None:
            continue
        try:
            status = codec.decode(FAMILIES[kind].status, entry.value, entry.key)
            said = decode(survey.keys, kind, record)
        except RecordInvalid:
            continue  # a finding of its own
        ends = getattr(said, "deleting", "") or getattr(said, "wish", "")
        if status.underway and status.record >= record.create_index and not ends:
            yield from _lost(survey, kind, item, status, getattr(said, "resumed", 0))


def _lost(survey: Survey, kind: str, item: str, status: ItemStatus, resumed: int) -> Iterator[Finding]:
    key = survey.keys.work(kind, item)
    entry = survey.trees["work"].get(key)
    try:
        work = Work() if entry is None else codec.decode(Work, entry.value, key)
    except RecordInvalid:
        return  # a finding of its own
    if work.keeps(kind):
        return
    state, what = _begun(kind, status, resumed)
    found, short = "missing" if entry is None else "empty", survey.short(key)
    value = codec.encode(msgspec.structs.replace(work, **{STATES[kind]: state}))
    restores = ((key, entry.modify_index if entry is not None else 0, value),)
    yield Finding(
        "state-lost",
        short,
        f"it is {found}, but the status says that the item has begun",
        f"consul kv put {key} @FILE restores it from a copy; farmctl doctor --fix {short} {what}",
        Removal("work", f"{kind}/{item}", (), (), restores=restores),
    )


def _begun(kind: str, status: ItemStatus, resumed: int) -> tuple[msgspec.Struct, str]:
    """The state with which a person lets an item go on, and what that means."""
    if kind == APPS.name:
        return DispatchState(), "applies its revision again from the first step, jobs included"
    if kind == DEPLOYMENTS.name:
        return DeploymentState(), "lets it start again, and its hooks run again"
    assert kind == ROLLOUTS.name
    assert isinstance(status, RolloutStatus)
    stage = max(0, status.stage - 1)
    cause = "its state was lost, and was restored from its status"
    state = RolloutState(
        phase="halted", back=status.back, stage=stage, cause=cause, fault=True, resumed=resumed
    )
    return state, f"halts it at stage {stage + 1} until you resume, revert or abort it"
