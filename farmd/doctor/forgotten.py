"""Finds items that began, as their statuses say, and whose states are missing or empty: rollouts, deployments
and apps. Nobody knows how far they are, so their farms leave them as they are until a person decides.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from farmd.doctor.model import Finding, Removal
from farmd.doctor.survey import Survey
from store import codec
from store.apps import DispatchState
from store.deployments import DeploymentState
from store.errors import RecordInvalid
from store.families import APPS, DEPLOYMENTS, FAMILIES, ROLLOUTS, decode
from store.rollouts import RolloutState, RolloutStatus
from store.status import ItemStatus
from store.work import STATES, Work


def check(survey: Survey) -> list[Finding]:
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
