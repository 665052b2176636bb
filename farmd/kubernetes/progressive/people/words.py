"""What people say of the rollout of a Knative Service: annotations of its RolloutOrchestrator.

What must never break: the audit record is written before the word (R16), because no transaction holds both;
the word is said to the very record that the person saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farmd.commands.mutation import Call, Change, Mutation, commit, registered
from farmd.kubernetes.people.refusals import refusals
from farmd.kubernetes.progressive import reading, record
from farmd.kubernetes.progressive.objects import (
    PAUSED,
    PROMOTE,
    RELEASED,
    RESUMED,
    RETRY,
    REVERT,
    Orchestrator,
)
from farmd.kubernetes.progressive.people.found import KIND, FoundService, Services
from store.errors import Conflict, NotFound
from store.times import rfc3339

Words = Mapping[str, str | None]


async def say(call: Call, seen: FoundService, verb: str, revision: str = "") -> Mutation:
    """The word ``verb`` to a rollout; one that changes nothing needs no write.

    Raises:
        NotFound: the service has no rollout. Conflict: the word makes no sense now.
    """
    there = _recorded(seen)
    words = _words(call, seen, verb, revision)
    says = there.metadata.annotations
    before = {_short(key): says.get(key, "") for key in words}
    after = {_short(key): text or "" for key, text in words.items()}
    if before == after or not words:
        return Mutation(_change(seen, verb))
    change = _change(seen, verb, before=before, after=after, destructive=verb == "revert")
    return Mutation(change, (await registered(call),))


async def write(call: Call, services: Services, seen: FoundService, mutation: Mutation) -> None:
    """Write the audit record, then the word.

    Raises:
        StoreError: the API server refuses it, or gave no answer; the record changed meanwhile.
    """
    await commit(call, mutation)
    meta = _recorded(seen).metadata
    words = {f"rollout.farmd.io/{key}": text or None for key, text in mutation.change.after.items()}
    with refusals(f"ksvc/{seen.name}"):
        patch = {"metadata": {"uid": meta.uid, "annotations": words}}
        await services.of(Orchestrator).patch(meta.namespace, meta.name, patch)


def _words(call: Call, seen: FoundService, verb: str, revision: str) -> Words:
    """The annotations of a word; an act is a changed value, so it bears the time and who said it."""
    act = f"{rfc3339(call.clock.now())} {call.actor}"
    if verb == "pause":
        return {PAUSED: "true"}
    if verb == "resume":
        pause = {PAUSED: None} if record.paused(seen.knative) else {}
        return {**pause, **({RESUMED: act} if _halted(seen) else {})}
    if verb == "retry":
        return {RETRY: f"{_refused(seen, revision)} {act}"}
    if reading.rollout(seen.knative).ready is True and verb == "promote":
        raise Conflict(f"ksvc/{seen.name}: all stages are over, there is nothing to promote")
    return {{"revert": REVERT, "promote": PROMOTE}[verb]: act}


def _refused(seen: FoundService, revision: str) -> str:
    found = record.refused(seen.knative)
    if not found:
        raise Conflict(f"ksvc/{seen.name}: no revision was reverted, there is nothing to retry")
    if revision and revision not in found:
        raise Conflict(f"ksvc/{seen.name}: found {revision}, expected one of {', '.join(found)}")
    return revision or found[-1]


def _halted(seen: FoundService) -> bool:
    return reading.rollout(seen.knative).stage_ready is False


def _recorded(seen: FoundService) -> Orchestrator:
    found = seen.knative.orchestrator
    if found is None or RELEASED in found.metadata.annotations:
        hint = "label it rollout.farmd.io/enabled=true" if not seen.knative.service.enabled else ""
        raise NotFound(f"ksvc/{seen.name} has no progressive rollout", hint=hint)
    return found


def _short(key: str) -> str:
    return key.rpartition("/")[2]


def _change(seen: FoundService, verb: str, **more: Any) -> Change:
    uid = seen.knative.service.metadata.uid
    return Change(KIND, uid, seen.name, f"{KIND}.{verb}", object=f"ksvc/{seen.name}", **more)
