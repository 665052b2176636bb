"""What people say to a Knative Service: its stages before a change, and the wait for the end of one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace as changed

from farmd.commands import waiting
from farmd.commands.mutation import Call, Change, Mutation, commit, registered
from farmd.commands.waiting import Look, Report
from farmd.kubernetes.commands import refusals
from farmd.kubernetes.knative import plan, record, scales, sync, view
from farmd.kubernetes.knative.facts import Snapshot, Sync
from farmd.kubernetes.knative.objects import (
    PAUSED,
    PROMOTE,
    RELEASED,
    RESUMED,
    RETRY,
    REVERT,
    SERVICES,
    AutoscalerStatus,
    Configuration,
    ConfigurationStatus,
    KnativeService,
    Meta,
    Orchestrator,
    PodAutoscaler,
    Revision,
)
from farmd.kubernetes.knative.settings import Settings, load_config_from_service, misspelt
from farmd.kubernetes.knative.view import KIND, FoundService, Services, told
from farmd.kubernetes.objects import ManagedFields
from farmd.runtime.errors import EndedOtherwise, WaitTimeout
from store.errors import Conflict, InputInvalid, NotFound
from store.mistakes import shown
from store.times import rfc3339
from store.words import count_of

# ``rollout plan``: the stages that a changed file of a Knative Service would go through. Nothing is
# written.
#
# The newcomer is what the template would become; the stages are those of the farm's own decisions, as if
# every pod came.

# A service is a label of a host's name; so is a namespace, which may begin with a digit.
_NAME = re.compile("[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
STANDS = "its template is already there"


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What would come: ``reason`` says why nothing does, where there are no stages."""

    name: str
    revision: str = ""
    strategy: str = ""
    ratio: int = 0
    peak: int = 0
    stages: Sequence[record.Stage] = ()
    reason: str = ""


class AskedService(NamedTuple):
    """A service of a file, with its whole template."""

    service: KnativeService
    template: Any


def parse(data: Any, source: str) -> AskedService:
    """The Knative Service of a document. A field of null is none, as kubectl has it.

    Raises:
        InputInvalid: it is none; one line with the field.
    """
    data = _without_nulls(data)
    kind = (data.get("apiVersion"), data.get("kind")) if isinstance(data, dict) else None
    if kind != (SERVICES.api_version, SERVICES.kind):
        expected = f"apiVersion {SERVICES.api_version}, kind {SERVICES.kind}"
        raise InputInvalid(f"{source}: found {_kind(data)}, expected {expected}", field="kind")
    try:
        found = msgspec.convert(data, KnativeService)
    except msgspec.ValidationError as error:
        raise InputInvalid(f"{source}: {error}") from error
    for field, there in (("metadata.name", found.metadata.name), ("spec", data.get("spec"))):
        if not there:
            raise InputInvalid(f"{source}: {field}: missing, expected one", field=field)
    _check(found, source)
    return AskedService(found, data["spec"].get("template"))


def _kind(data: Any) -> str:
    """What a document says that it is."""
    if not isinstance(data, dict):
        return shown(data)
    said = [f"{key} {shown(data[key])}" for key in ("apiVersion", "kind") if key in data]
    return ", ".join(said) or "no kind"


def _check(asked: KnativeService, source: str) -> None:
    """Refuse what Knative takes for no name, and settings of rollouts that are none.

    Raises:
        InputInvalid: see above.
    """
    meta = asked.metadata
    for field, name, rule in (("name", meta.name, _NAME), ("namespace", meta.namespace, _NAMESPACE)):
        if name and rule.fullmatch(name) is None:
            expected = "lower-case letters, digits and -, at most 63, from a letter to a letter or digit"
            told = f"metadata.{field}: found {shown(name)}, expected {expected}"
            raise InputInvalid(f"{source}: {told}", field=f"metadata.{field}")
    if wrong := misspelt(asked):
        field = "spec.template.metadata.annotations"
        raise InputInvalid(f"{source}: {field}.{wrong}", field=field)


def _without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _without_nulls(each) for name, each in data.items() if each is not None}
    return [_without_nulls(each) for each in data] if isinstance(data, list) else data


def same(live: Any, asked: Any) -> bool:
    """Whether everything that a file says stands already; the API server fills in defaults of its own."""
    if isinstance(asked, dict) and isinstance(live, dict):
        return all(name in live and same(live[name], each) for name, each in asked.items())
    if isinstance(asked, list) and isinstance(live, list):
        return len(asked) == len(live) and all(map(same, live, asked))
    return bool(live == asked)


def first(asked: KnativeService, name: str) -> Planned:
    """The plan of a service that is not there yet."""
    revision = asked.spec.template.metadata.name or f"{asked.metadata.name}-00001"
    return Planned(name=name, revision=revision, reason="the first revision gets all traffic at once")


def planned(seen: FoundService, base: Settings, asked: KnativeService, *, pushes: bool = True) -> Planned:
    """The stages of a service whose template becomes that of ``asked``, and its traffic, where that has some.
    ``pushes``: whether it has another template.

    Raises:
        InputInvalid: the template names a revision that is there.
    """
    knative = _asked(seen.knative, base, asked)
    newest = knative.newest
    if pushes:
        knative, newest = _pushed(knative, asked)
    plan = Planned(
        name=seen.name, revision=newest, strategy=knative.settings.strategy, ratio=knative.settings.ratio
    )
    if not knative.service.enabled:
        return changed(
            plan, reason="the label rollout.farmd.io/enabled is missing: all traffic moves at once"
        )
    found = sync.sync(knative)
    if found.action == "word":
        knative = _heard(knative, found)
        found = sync.sync(knative)
    if found.spec is None:
        return changed(plan, reason=found.reason or _still(knative, pushes=pushes))
    stages = record.ahead(knative, found.spec)
    ends = ", ".join(each.revision_name for each in found.spec.target_revisions)
    return changed(plan, revision=ends, stages=stages, peak=max((each.peak for each in stages), default=0))


def _still(knative: Snapshot, *, pushes: bool) -> str:
    """Why nothing moves."""
    if knative.orchestrator is not None and record.paused(knative):
        return "the rollout is held: nothing moves until it continues"
    if not pushes:
        return STANDS
    return f"its traffic stays where it is pinned: {sync.followed(knative)}"


def _asked(knative: Snapshot, base: Settings, asked: KnativeService) -> Snapshot:
    """The service as a person has written it, before Knative made anything of that."""
    before, meta = knative.service, knative.service.metadata
    spec = changed(before.spec, template=asked.spec.template)
    meta = changed(
        meta,
        labels={**meta.labels, **asked.metadata.labels},
        annotations={**meta.annotations, **asked.metadata.annotations},
    )
    if asked.spec.traffic:
        spec = changed(spec, traffic=asked.spec.traffic)
        writer = ManagedFields(
            manager="kubectl",
            time=rfc3339(knative.now),
            fields_v1={"f:spec": {"f:traffic": {}}},
        )
        meta = changed(meta, managed_fields=(writer,))
    service = KnativeService(metadata=meta, spec=spec)
    return replace(knative, service=service, settings=load_config_from_service(base, service)[0])


def _pushed(knative: Snapshot, asked: KnativeService) -> tuple[Snapshot, str]:
    """The same with the revision that Knative would make of the template, and its name."""
    meta = knative.service.metadata
    generation = knative.configuration.metadata.generation + 1 if knative.configuration is not None else 1
    template = asked.spec.template.metadata
    name = template.name or f"{meta.name}-{generation:05d}"
    if name in knative.revisions:
        field = "spec.template.metadata.name"
        raise InputInvalid(f"{field}: found {name}, expected a name that no revision has", field=field)
    there = Meta(name=name, namespace=meta.namespace, annotations=template.annotations)
    status = ConfigurationStatus(observed_generation=generation, latest_created_revision_name=name)
    nothing = AutoscalerStatus(desired_scale=0, actual_scale=0)
    found = replace(
        knative,
        configuration=Configuration(metadata=Meta(generation=generation), status=status),
        revisions={**knative.revisions, name: Revision(metadata=there)},
        autoscalers={**knative.autoscalers, name: PodAutoscaler(metadata=Meta(name=name), status=nothing)},
    )
    return found, name


def _heard(knative: Snapshot, word: Sync) -> Snapshot:
    """The same once a farm has the word on record."""
    meta = knative.record.metadata
    says = {**meta.annotations, **word.annotations}
    kept = {key: text for key, text in says.items() if text is not None}
    return replace(knative, orchestrator=changed(knative.record, metadata=changed(meta, annotations=kept)))


def lines(found: Planned) -> list[str]:
    """A plan for people: one line for itself, one a stage."""
    if not found.stages:
        return [f"ksvc/{found.name}: {found.reason}"]
    many = count_of(len(found.stages), "stage")
    head = f"ksvc/{found.name}: {found.revision} rolls out in {many}, {found.strategy}, ratio {found.ratio}"
    told = [f"{head}, at most {count_of(found.peak, 'pod')} at once"]
    for number, stage in enumerate(found.stages, 1):
        shares = (
            f"{each.revision_name} {each.percent or 0} %"
            + ("" if each.target_replicas is None else f", {count_of(each.target_replicas, 'pod')}")
            for each in stage.revisions
        )
        told.append(f"  stage {number}  {'; '.join(shares)}")
    return told


# Waiting for the end of a rollout of a Knative Service, with its progress.

BACK = f"{KIND}.revert"


async def end(call: Call, services: Services, change: Change, timeout: float, report: Report) -> None:
    """Wait until the rollout ends as the word asked: at its target, or, after ``revert``, where it began.

    Raises:
        EndedOtherwise: it ended in another way, or a fault halted it.
        WaitTimeout: it is not over; it goes on.
    """
    last: list[FoundService] = []

    async def look() -> Look:
        seen = await owned(call, services, *change.name.split("/"))
        last[:] = [seen]
        row = view.row(seen)
        state = "ended" if row.phase in ("done", "halted", "off") and not _pending(seen) else row.phase
        return Look(
            name=change.name,
            noun="ksvc",
            state=state,
            desired=0,
            counts=False,
            reason=row.reason,
            owner=row.owner,
            draw=lambda width: view.lines(seen, width),
        )

    async def late(now: Look) -> WaitTimeout:
        text = f"the rollout of ksvc/{change.name} is not over after {timeout:g} s: {waiting.describe(now)}"
        return WaitTimeout(text, hint=f"farmctl rollout status ksvc/{change.name}")

    await waiting.until(call, look, lambda now, _: now.state == "ended", late, timeout, report)
    knative = last[0].knative
    row, reverted = view.row(last[0]), record.back(knative)
    if row.phase != "done" or reverted != (change.action == BACK):
        how = (
            "went back" if row.phase == "done" and reverted else "ended" if row.phase == "done" else row.phase
        )
        raise EndedOtherwise(
            f"the rollout of ksvc/{change.name} {how}: {row.reason or row.shares}",
            hint=f"farmctl rollout explain ksvc/{change.name}",
        )


def _pending(seen: FoundService) -> bool:
    """Whether a farm has not acted yet on what was said or changed."""
    if seen.knative.orchestrator is None:
        return False
    planned = plan.decide(seen.knative)
    return planned.turn is not None or scales.rollout(seen.knative).ready is None


async def owned(call: Call, services: Services, namespace: str, name: str) -> FoundService:
    """A service, with the farm that owns its rollout."""
    seen = await services.get(namespace, name)
    return seen.with_word_of(await told(call))


# What people say of the rollout of a Knative Service: annotations of its RolloutOrchestrator.
#
# What must never break: the audit record is written before the word (R16), because no transaction holds
# both; the word is said to the very record that the person saw.

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
    if scales.rollout(seen.knative).ready is True and verb == "promote":
        raise Conflict(f"ksvc/{seen.name}: all stages are complete, there is nothing to promote")
    return {{"revert": REVERT, "promote": PROMOTE}[verb]: act}


def _refused(seen: FoundService, revision: str) -> str:
    found = record.refused(seen.knative)
    if not found:
        raise Conflict(f"ksvc/{seen.name}: no revision was reverted, so there is nothing to retry")
    if revision and revision not in found:
        raise Conflict(f"ksvc/{seen.name}: found {revision}, expected one of {', '.join(found)}")
    return revision or found[-1]


def _halted(seen: FoundService) -> bool:
    return scales.rollout(seen.knative).stage_ready is False


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
