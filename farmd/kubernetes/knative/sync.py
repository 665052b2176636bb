"""What people, Knative and other tools changed since the record was written: pure.

What must never break: a word is on record before the field that said it is taken back; a revision that was
reverted is no target until somebody asks for it by name; what another controller writes is never fought.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from farmd.kubernetes.knative import record, scales, traffic
from farmd.kubernetes.knative.facts import Heard, Snapshot, Sync
from farmd.kubernetes.knative.objects import (
    CAUSE,
    FOLLOW,
    HEARD,
    MANAGER,
    PROMOTE,
    REFUSED,
    RELEASED,
    RETRY,
    REVERT,
    WRITER,
    OrchestratorSpec,
)
from farmd.kubernetes.objects import ManagedFields, managers_of, seconds_since_epoch

# Who writes the same traffic so often, each time within so long after the time before, is a controller and
# no person, also later, because while its traffic stands nobody can see whether it would write again. The
# time is above the intervals of tools that look now and then; writes further apart hold no rollout up.
MOST_WORDS, WORDS_SECONDS = 3, 7200.0


def sync(knative: Snapshot) -> Sync:
    """What changed, and the record that follows; ``none`` where nothing did, or it waits for a fact."""
    there = knative.orchestrator
    if there is None:
        return _first(knative) if knative.service.enabled else Sync()
    annotations = there.metadata.annotations
    if record.leaves(knative):
        return Sync() if RELEASED in annotations else Sync(action="release", reason="it is no longer enabled")
    if RELEASED in annotations:
        return _created(knative)
    if (hand := _other_hand(knative)) is not None:
        told = (
            f"{hand} writes {there.metadata.name}'s RolloutOrchestrator, too: restore Knative's own images,"
        )
        return Sync(action="blocked", reason=f"{told} or remove the label")
    if record.paused(knative):
        return Sync()
    return _act(knative) or _word(knative) or _retargeted(knative)


def _first(knative: Snapshot) -> Sync:
    """The record of a service that has none. One that somebody made by hand, or left as an orphan, bears its
    name for good.
    """
    if knative.ownerless:
        name = knative.service.metadata.name
        told = f"RolloutOrchestrator {name}: found no owner, expected the service {name}: delete it"
        return Sync(action="blocked", reason=told)
    return _created(knative)


def _created(knative: Snapshot) -> Sync:
    """The record of a service that has none, or whose former one was released.

    Where the traffic is farmd's already, somebody deleted the record, or took the label away for a while:
    what came meanwhile and does not serve is refused, so that no rollout starts unasked, and a pin stays.
    """
    newest = knative.newest
    if not newest:
        return Sync()
    start = traffic.initial_target_revisions(knative, newest)
    serves = scales.target_names(start)
    own = traffic.ours(knative)
    follow = followed(knative) if own else traffic.spelt(knative.service.spec.traffic)
    wanted = traffic.final_target_revisions(knative, newest, traffic.entries(follow))
    bad = (newest,) if own and start and newest in scales.target_names(wanted) - serves else ()
    if bad:
        wanted = start
    made = OrchestratorSpec(initial_revisions=start, target_revisions=wanted)
    if (spec := record.staged(knative, made, ())) is None:
        return Sync()
    said, says = record.heard(knative), _says(knative)
    # What somebody said while the label was away was said of no rollout.
    said = replace(
        said, revert=says.get(REVERT, ""), promote=says.get(PROMOTE, ""), retry=says.get(RETRY, "")
    )
    owner = _writer(knative)
    if owner is not None and not own:
        said = replace(said, word=_told(knative, owner), revision=newest, times=(owner.time or "",))
    annotations = {
        FOLLOW: follow,
        REFUSED: ",".join(bad) or None,
        HEARD: _spelt(said),
        RELEASED: None,
        CAUSE: None,
    }
    return Sync(action="create", spec=spec, annotations=annotations, reason=f"it follows {follow}")


def followed(knative: Snapshot) -> str:
    """What a record follows, also one that was released; the latest revision where there is none."""
    return _says(knative).get(FOLLOW, traffic.LATEST)


def _says(knative: Snapshot) -> Mapping[str, str]:
    """The annotations of the record; none where there is none."""
    return knative.orchestrator.metadata.annotations if knative.orchestrator is not None else {}


def _act(knative: Snapshot) -> Sync | None:
    """An annotation that a person changed: an act is a changed value."""
    says, said = knative.record.metadata.annotations, record.heard(knative)
    if says.get(RETRY, "") != said.retry:
        return _retried(knative, says.get(RETRY, ""))
    if says.get(REVERT, "") != said.revert:
        return _reverted(knative, replace(said, revert=says.get(REVERT, "")))
    if says.get(PROMOTE, "") != said.promote:
        return _promoted(knative, replace(said, promote=says.get(PROMOTE, "")))
    return None


def _reverted(knative: Snapshot, said: Heard) -> Sync:
    """Go back. A promotion that was requested at the same time is dropped: it was for the way forward."""
    found = record.turned_back(knative, "") if said.revert else None
    if found is None:
        return _heard(Sync(action="word", reason="there is nothing to go back to"), said)
    if found.action == "none":
        return found
    return _heard(found, replace(said, promote=knative.record.metadata.annotations.get(PROMOTE, "")))


def _heard(found: Sync, said: Heard) -> Sync:
    annotations = {**found.annotations, HEARD: _spelt(said)}
    return Sync(action=found.action, spec=found.spec, annotations=annotations, reason=found.reason)


def _retried(knative: Snapshot, value: str) -> Sync:
    """Take a revision out of those that were reverted: the one that the value names, or else the newest."""
    before = record.refused(knative)
    word = (value.split() or [""])[0]
    chosen = word if word in before else (before[-1] if before else "")
    left = [name for name in before if name != chosen] if value else before
    annotations = {REFUSED: ",".join(left) or None}
    said = replace(record.heard(knative), retry=value)
    return _heard(
        Sync(action="word", annotations=annotations, reason=f"{chosen or 'nothing'} is tried again"), said
    )


def _promoted(knative: Snapshot, said: Heard) -> Sync:
    """Reach the end in one stage."""
    spec = knative.record.spec
    ended = scales.rollout(knative).ready is True
    if ended or not said.promote or len(spec.target_revisions) != 1:
        return _heard(Sync(action="word", reason="there is nothing to promote"), said)
    begun = replace(
        traffic.update_initial_final_target_rev(knative, ()), target_revisions=spec.target_revisions
    )
    found = record.at_once(knative, begun)
    if found is None:
        return Sync()
    return _heard(Sync(action="retarget", spec=found, reason="a person promoted it"), said)


def _writer(knative: Snapshot) -> ManagedFields | None:
    """The other manager that wrote the service's traffic last; None: there is none."""
    owners = list(managers_of(knative.service.metadata, "spec", "traffic"))
    others = [each for each in owners if each.manager != MANAGER]
    return max(others, key=lambda each: each.time or "", default=None)


def _told(knative: Snapshot, owner: ManagedFields) -> str:
    return f"{traffic.spelt(knative.service.spec.traffic)} by {owner.manager}"


def _word(knative: Snapshot) -> Sync | None:
    """Traffic that somebody else wrote: what the rollout follows from now on."""
    owner = _writer(knative)
    asked = knative.service.spec.traffic
    if owner is None or traffic.ours(knative):
        return None
    wrong = _unknown(knative)
    if wrong is None and traffic.shared_alike(asked, traffic.pinned(knative)):
        return None
    said, at = record.heard(knative), owner.time or ""
    told, newest = _told(knative, owner), knative.newest
    repeated = said.word == told and said.revision == newest
    times = said.times if repeated else ()
    if len(times) >= MOST_WORDS:
        return Sync(action="blocked", reason=f"spec.traffic is written by {owner.manager}, too")
    if repeated and at in times:
        return None
    if wrong is not None:
        return Sync(action="blocked", reason=wrong)
    follows = times and seconds_since_epoch(at) - seconds_since_epoch(times[-1]) < WORDS_SECONDS
    follow = traffic.spelt(asked)
    named = {each.revision_name for each in asked}
    annotations = {
        FOLLOW: follow,
        REFUSED: ",".join(name for name in record.refused(knative) if name not in named) or None,
    }
    now = replace(said, word=told, revision=newest, times=(*times, at) if follows else (at,))
    return _heard(
        Sync(action="word", annotations=annotations, reason=f"{owner.manager} asks for {follow}"), now
    )


def _unknown(knative: Snapshot) -> str | None:
    """An entry of the traffic that names no revision that could bear it."""
    usable = sorted(name for name, each in knative.revisions.items() if each.ready)
    for number, each in enumerate(knative.service.spec.traffic):
        if each.revision_name and each.revision_name not in usable:
            expected = ", ".join(usable) or "one that is ready"
            return (
                f"spec.traffic[{number}].revisionName: found {each.revision_name}, expected one of {expected}"
            )
    return None


def _retargeted(knative: Snapshot) -> Sync:
    """Another end, because of a new revision or another word."""
    there, newest, follow = knative.record, knative.newest, followed(knative)
    if not newest:
        return Sync()
    wanted = traffic.final_target_revisions(knative, newest, traffic.entries(follow))
    names = scales.target_names(wanted)
    same = not traffic.differs(there.spec.target_revisions, wanted)
    if same or names & set(record.refused(knative)):
        return Sync()
    spec = record.staged(knative, traffic.update_initial_final_target_rev(knative, wanted), ())
    if spec is None:
        return Sync()
    told = ", ".join(sorted(names))
    return Sync(action="retarget", spec=spec, reason=f"its target is now {told}")


def _other_hand(knative: Snapshot) -> str | None:
    """Another manager that wrote the spec of the record after farmd did."""
    owners = list(managers_of(knative.record.metadata, "spec"))
    own = max((each.time or "" for each in owners if each.manager == WRITER), default=None)
    later = [
        each.manager
        for each in owners
        if own is not None and (each.time or "") > own and each.manager != WRITER
    ]
    return later[0] if later else None


def _spelt(said: Heard) -> str:
    return msgspec.json.encode(said).decode()
