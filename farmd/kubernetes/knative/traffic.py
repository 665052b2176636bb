"""The traffic of a stage: which shares, and as which entries of the service: pure (Knative's
``pkg/reconciler/service`` ``TransformService``).

What must never break: the shares of what is written sum to 100 and name revisions that are ready, because one
entry that is not ready stops the whole route; and no entry with a share says "latest", because the next push
would take the traffic unasked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from farmd.kubernetes.knative.bounds import (
    LAST_STAGE_READY,
    READY,
    STAGE_READY,
    bounded,
    final,
    fresh,
    known,
    read_service_bounds,
)
from farmd.kubernetes.knative.facts import Snapshot
from farmd.kubernetes.knative.objects import MANAGER, UNREACHABLE, OrchestratorSpec, TrafficTarget, routed
from farmd.kubernetes.knative.settings import NO_DURATION
from farmd.kubernetes.objects import managers_of
from farmd.rollout.staging import TargetRevision
from farmd.rollout.steps import RESOURCE_UTIL_STRATEGY

# To whom the share of a revision goes that is not ready.
_HEIRS = ("down", "stay", "up", "")


def actual(knative: Snapshot, name: str) -> int | None:
    """How many pods a revision has; None: not known."""
    found = knative.autoscalers.get(name)
    scale = found.status.actual_scale if found is not None else None
    return scale if scale is None or scale >= 0 else None


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
    """Whether two lists are equal, in any order."""
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


# Where a rollout begins and where it must end, as target revisions: pure (Knative's
# ``pkg/reconciler/service/resources``).
#
# What a person asked of the traffic stands on record as ``follow``: ``latest``, or shares by names
# (``web-00001=30,latest=70``).

LATEST = "latest"
Revisions = tuple[TargetRevision, ...]


def spelt(traffic: Iterable[TrafficTarget]) -> str:
    """What a person asks of the traffic, as one text. Entries for a tag alone are no shares."""
    shares = [each for each in traffic if each.percent is not None or not each.tag]
    if not shares or (len(shares) == 1 and not shares[0].revision_name):
        return LATEST
    return ",".join(
        f"{each.revision_name or LATEST}={100 if each.percent is None else each.percent}"
        + (f":{each.tag}" if each.tag else "")
        for each in shares
    )


def entries(follow: str) -> tuple[TrafficTarget, ...]:
    """The traffic that such a text asks for."""
    found = []
    for part in (follow or LATEST).split(","):
        name, _, share = part.partition("=")
        percent, _, tag = share.partition(":")
        newest = name == LATEST
        found.append(
            TrafficTarget(
                revision_name="" if newest else name,
                latest_revision=newest,
                percent=int(percent) if percent.isdecimal() else 100,
                tag=tag,
            )
        )
    return tuple(found)


def target_revision(knative: Snapshot, newest: str, entry: TrafficTarget) -> TargetRevision:
    """A target revision out of an entry of traffic. A revision that is not there yet has the template's
    bounds.
    """
    name = entry.revision_name or newest
    bounds = final(knative, name) if name in knative.revisions else read_service_bounds(knative.service)
    found = TargetRevision(
        revision_name=name,
        configuration_name=entry.configuration_name,
        latest_revision=name == newest,
        percent=100 if entry.percent is None else entry.percent,
        tag=entry.tag,
        url=entry.url,
    )
    return bounded(found, bounds)


def final_target_revisions(knative: Snapshot, newest: str, traffic: Sequence[TrafficTarget]) -> Revisions:
    """Where the traffic must go. Of several entries one without a share for the latest revision goes first,
    so that it is not the last one, which shrinks. Several entries for one revision are one.
    """
    wanted = [each for each in traffic if each.percent is not None or not each.tag]
    if not wanted:
        wanted = [TrafficTarget(latest_revision=True, percent=100)]
    if wanted[-1].latest_revision and wanted[-1].percent == 0:
        wanted = [wanted[-1], *wanted[:-1]]
    return _merged(target_revision(knative, newest, each) for each in wanted)


def initial_target_revisions(knative: Snapshot, newest: str) -> Revisions:
    """Where the traffic goes now, by the route."""
    if knative.route is None:
        return ()
    shares = [each for each in knative.route.status.traffic if each.percent is not None or not each.tag]
    return consolidate_traffic([target_revision(knative, newest, each) for each in shares])


def consolidate_traffic(revisions: Iterable[TargetRevision]) -> Revisions:
    """One entry for each revision, by name, with all of its shares (seed ``consolidateTraffic``)."""
    return tuple(sorted(_merged(revisions), key=lambda each: each.revision_name))


def _merged(revisions: Iterable[TargetRevision]) -> Revisions:
    """One entry for each revision, in the order in which they are first named."""
    merged: dict[str, TargetRevision] = {}
    for each in revisions:
        had = merged.get(each.revision_name)
        if had is None:
            merged[each.revision_name] = each
            continue
        shares = [one.percent for one in (had, each) if one.percent is not None]
        merged[each.revision_name] = replace(
            had,
            percent=sum(shares) if shares else None,
            latest_revision=bool(had.latest_revision or each.latest_revision),
        )
    return tuple(merged.values())


def differs(before: Revisions, after: Revisions) -> bool:
    """Whether the end is another one: by names and shares alone, in order."""
    return [(each.revision_name, each.percent) for each in before] != [
        (each.revision_name, each.percent) for each in after
    ]


def update_initial_final_target_rev(knative: Snapshot, targets: Revisions) -> OrchestratorSpec:
    """The record for another end (seed ``UpdateInitialFinalTargetRev``): it begins where the rollout stands.

    A stage under way counts if its newcomer has pods that serve; a broken newcomer is forgotten.
    """
    spec = knative.record.spec
    if not differs(spec.target_revisions, targets):
        return spec
    return replace(
        spec,
        initial_revisions=_stands(knative),
        target_revisions=targets,
        stage_target_revisions=(),
        target_finish_time=None,
    )


def _stands(knative: Snapshot) -> Revisions:
    """Where the rollout stands."""
    record, route = knative.record, knative.route
    finished, stage = record.status.stage_revision_status, record.spec.stage_target_revisions
    serves = route is not None and bool(route.status.traffic)
    if not finished:
        return record.spec.initial_revisions if serves else ()
    conditions = record.status.conditions
    if known(conditions, STAGE_READY) is True or known(conditions, READY) is True:
        return finished
    if not serves or not stage:
        return ()
    grows = next((each.revision_name for each in stage if each.direction in ("", "up")), "")
    return stage if serving(knative, grows) else finished


def serving(knative: Snapshot, name: str) -> bool:
    """Whether a revision has pods, and is ready."""
    return knative.ready(name) and (actual(knative, name) or 0) > 0
