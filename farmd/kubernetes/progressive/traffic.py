"""The traffic of a stage: which shares, and as which entries of the service: pure (Knative's
``pkg/reconciler/service`` ``TransformService``).

What must never break: the shares of what is written sum to 100 and name revisions that are ready, because one
entry that is not ready stops the whole route; and no entry with a share says "latest", because the next push
would take the traffic unasked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from farmd.kubernetes.managed import managers_of
from farmd.kubernetes.progressive.bounds import fresh
from farmd.kubernetes.progressive.conditions import LAST_STAGE_READY, known
from farmd.kubernetes.progressive.model import Snapshot
from farmd.kubernetes.progressive.objects import MANAGER, UNREACHABLE, TrafficTarget, routed
from farmd.kubernetes.progressive.settings import NO_DURATION
from farmd.rollout.staging import TargetRevision
from farmd.rollout.steps import RESOURCE_UTIL_STRATEGY

# To whom the share of a revision goes that is not ready.
_HEIRS = ("down", "stay", "up", "")


def actual(knative: Snapshot, name: str) -> int | None:
    """How many pods a revision has; None: not known."""
    found = knative.autoscalers.get(name)
    scale = found.status.actual_scale if found is not None else None
    return scale if scale is None or scale >= 0 else None


def transform_service(knative: Snapshot) -> tuple[TrafficTarget, ...]:
    """The traffic of the present stage as Knative's extension writes it on a route (seed)."""
    name, found = knative.service.metadata.name, []
    for each in _shares(knative):
        entry = _entry(each)
        if each.latest_revision:
            configuration = each.configuration_name or name
            entry = replace(entry, revision_name="", configuration_name=configuration)
        found.append(entry)
    return tuple(found)


def _entry(revision: TargetRevision) -> TrafficTarget:
    return TrafficTarget(
        revision_name=revision.revision_name,
        latest_revision=revision.latest_revision,
        percent=revision.percent,
        tag=revision.tag,
        url=revision.url,
    )


def _shares(knative: Snapshot) -> tuple[TargetRevision, ...]:
    """The shares that are due. What is drained keeps a share of 0 until the rollout is over."""
    record = knative.record
    over = known(record.status.conditions, LAST_STAGE_READY) is True and record.observed
    omitted = over or knative.settings.duration != NO_DURATION
    shares = _held(knative) or record.spec.stage_target_revisions
    return tuple(
        each if each.percent is not None else replace(each, percent=0)
        for each in shares
        if each.percent is not None or not omitted
    )


def _held(knative: Snapshot) -> tuple[TargetRevision, ...]:
    """The shares before this stage, while a newcomer does not have its pods yet; empty: nothing holds.

    It has a share of 0 meanwhile, because Knative ends pods of what no route reaches. The original holds no
    jump, whose newcomers Knative lets get ready with all of their pods; farmd lets them have one.
    """
    record = knative.record
    before = record.status.stage_revision_status or record.spec.initial_revisions
    if record.spec.rollout_strategy == RESOURCE_UTIL_STRATEGY or knative.settings.duration != NO_DURATION:
        return ()
    targets, stage = record.spec.target_revisions, record.spec.stage_target_revisions
    if not stage or not before or not any(_behind(knative, each) for each in fresh(knative, targets)):
        return ()
    grow = {each.revision_name for each in targets}
    held = tuple(
        replace(each, latest_revision=each.latest_revision if each.revision_name in grow else False)
        for each in before
        if each.percent is not None
    )
    grow -= {each.revision_name for each in held}
    return (*held, *(replace(each, percent=0) for each in stage if each.revision_name in grow))


def _behind(knative: Snapshot, target: TargetRevision) -> bool:
    """Whether the newcomer lacks pods that this stage gives it whatever the traffic is.

    Those of a revision that no route reaches, as its autoscaler knows, are about to go: its least is ignored.
    """
    name, least = target.revision_name, target.min_scale
    have, scale = actual(knative, name), knative.autoscalers.get(name)
    if name not in knative.spas or have is None:
        return True
    if least and scale is not None and scale.spec.reachability == UNREACHABLE:
        return True
    goals = (
        each.target_replicas
        for each in knative.record.spec.stage_target_revisions
        if each.revision_name == name
    )
    goal = next((each for each in goals if each is not None), least)
    return goal is not None and least is not None and goal <= least and have < goal


def pinned(knative: Snapshot) -> tuple[TrafficTarget, ...]:
    """The traffic that the service is to have: by names; empty where nothing is ready to bear it.

    The share of a newcomer that is not ready goes to the one that shrinks; that of a former revision to none
    that is drained, which would never be empty. Tags that people gave stay.
    """
    shares = _shares(knative)
    ready = [each for each in shares if knative.ready(each.revision_name)]
    if not ready:
        return ()
    merged: dict[str, TargetRevision] = {}
    for each in ready:
        had = merged.get(each.revision_name)
        merged[each.revision_name] = (
            each if had is None else replace(had, percent=_percent(had) + _percent(each))
        )
    missing = 100 - sum(map(_percent, merged.values()))
    if missing:
        grown = all(knative.ready(each.revision_name) for each in shares if each.direction in ("", "up"))
        heir = min(
            merged.values(), key=lambda each: (grown and not each.percent, _HEIRS.index(each.direction))
        )
        merged[heir.revision_name] = replace(heir, percent=_percent(heir) + missing)
    entries = [replace(_entry(each), latest_revision=False, url=None) for each in merged.values()]
    return (*entries, *_tagged(knative, {each.tag for each in entries}))


def _percent(revision: TargetRevision) -> int:
    return revision.percent or 0


def _tagged(knative: Snapshot, others: set[str]) -> Iterable[TrafficTarget]:
    """The service's entries with a tag as entries for that alone, but for those of ``others`` and of
    revisions that are not ready.
    """
    return (
        replace(each, percent=None, url=None)
        for each in knative.service.spec.traffic
        if each.tag
        and each.tag not in others
        and (not each.revision_name or knative.ready(each.revision_name))
    )


def ours(knative: Snapshot) -> bool:
    """Whether the service's traffic is as farmd wrote it."""
    owners = managers_of(knative.service.metadata, "spec", "traffic")
    return any(each.manager == MANAGER for each in owners)


def equal(left: Sequence[TrafficTarget], right: Sequence[TrafficTarget]) -> bool:
    """Whether two lists say the same, in whatever order."""
    return _comparable(left) == _comparable(right)


def shared_alike(left: Iterable[TrafficTarget], right: Iterable[TrafficTarget]) -> bool:
    """Whether two lists give each revision the same share, whatever has a tag: one of 0 is for that alone."""
    shares = [routed(each for each in entries if each.percent or not each.tag) for entries in (left, right)]
    return shares[0] == shares[1]


def _comparable(entries: Sequence[TrafficTarget]) -> set[TrafficTarget]:
    return {replace(each, url=None, configuration_name="") for each in entries}


def shown(knative: Snapshot) -> bool:
    """Whether the route shows the traffic that is due."""
    route = knative.route
    return route is not None and route.observed and knative.routed == routed(pinned(knative))
