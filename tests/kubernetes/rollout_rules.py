"""What must hold of each version of each object while a Knative Service is rolled: K1 to K6.

K5 (at rest nothing is written), K7 (a freeze), K8 (the most pods at once), K9 (a rollout ends) and K10 (no
pod restarts) are of whole histories: the tests that make them assert them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from farmd.kubernetes.knative.objects import (
    AUTOSCALERS,
    FINALIZER,
    MANAGER,
    MAX_SCALE,
    MIN_SCALE,
    ORCHESTRATORS,
    REFUSED,
    REVISIONS,
    ROUTES,
    SERVICES,
    STAGE_AUTOSCALERS,
)
from farmd.kubernetes.objects import managers_of
from tests.kubernetes.knative_rules import bounds
from tests.kubernetes.knative_world import Thing, says
from tests.kubernetes.recording import Recording, Version, World, ours, pods_of, shares_of

BEARERS = (REVISIONS, AUTOSCALERS)
Bounds = tuple[float, float]


def mistakes(recorded: Recording) -> list[str]:
    """Each version that breaks a rule."""
    return [
        f"{rule.__name__} at {version.at}: {version.kind.kind} {version.name}: {told}"
        for version in recorded.history()
        for rule in RULES
        for told in rule(version)
    ]


def k1_traffic_is_whole_and_goes_to_ready_revisions(version: Version) -> Iterator[str]:
    """What farmd writes sums to 100, names revisions that are ready, and never says "latest"."""
    before, after = version.before, version.after
    if version.kind != SERVICES or after is None:
        return
    entries = after.spec.get("traffic") or ()
    if before is not None and before.spec.get("traffic") == after.spec.get("traffic"):
        return
    if not any(each.manager == MANAGER for each in managers_of(after.metadata, "spec", "traffic")):
        return
    if (total := sum(each.get("percent", 0) for each in entries)) != 100:
        yield f"traffic sums to {total}"
    for entry in entries:
        revision = version.world.get((REVISIONS, entry.get("revisionName", "")))
        if entry.get("latestRevision") or revision is None:
            yield f"{entry} names no revision"
        elif says(revision, "Ready") != "True":
            yield f"{revision.name} is not ready"


def k2_capacity_falls_after_the_traffic(version: Version) -> Iterator[str]:
    """Availability: what shrinks does so once the route shows less, and the newcomer has its pods.

    The StagePodAutoscaler falls first. Bounds that came back above it, as another version of Knative brings
    them, may return to it at any time: they give nothing that the traffic has not left already.
    """
    record = _record(version.world, "availability")
    if record is None or not (_fell_on_record(version) or _fell_below_the_record(version)):
        return
    stage = {each["revisionName"]: each for each in record.spec.get("stageTargetRevisions") or ()}
    entry = stage.get(version.name, {})
    if entry.get("direction") != "down":
        return
    share = shares_of(version.world.get((ROUTES, record.name))).get(version.name, 0)
    if share > (entry.get("percent") or 0):
        yield f"bounds fell while it has {share} % of the traffic, not {entry.get('percent') or 0} %"
    for each in stage.values():
        name, wanted = each["revisionName"], _least(each)
        if each.get("direction") == "up" and len(pods_of(version.world, name)) < wanted:
            yield f"bounds fell before {name} had {wanted} pods"


def k3_a_stage_takes_no_more_than_there_was(version: Version) -> Iterator[str]:
    """Resourceutil: the least pods of a stage are no more than those where the rollout began."""
    after = version.after
    if version.kind != ORCHESTRATORS or after is None or after.spec.get("rolloutStrategy") != "resourceutil":
        return
    began = sum(each.get("minScale", 0) for each in after.spec.get("initialRevisions") or ())
    stage = after.spec.get("stageTargetRevisions") or ()
    last = any(each.get("percent") == 100 for each in stage)  # it may be larger than what was before
    if not last and (least := sum(map(_least, stage))) > began:
        yield f"{least} pods at least, where it began with {began}"


def k4_bounds_narrow_the_final_ones_which_stand_at_rest(version: Version) -> Iterator[str]:
    """A stage's bounds lie within the final ones, which stand where there is no finalizer. One that no route
    ever reached keeps those of its stage: it would get its least pods.
    """
    after = version.after
    if version.kind in BEARERS and after is not None and ours(after) and version.name in version.finals:
        (least, most), (final_least, final_most) = _bounds(after), version.finals[version.name]
        if least > final_least or (most or math.inf) > (final_most or math.inf):
            yield f"{least}/{most} is beyond {final_least}/{final_most}"
    if version.kind == ORCHESTRATORS and after is not None and FINALIZER not in after.metadata.finalizers:
        if version.before is None or FINALIZER not in version.before.metadata.finalizers:
            return
        for (kind, name), thing in version.world.items():
            autoscaler = version.world.get((AUTOSCALERS, name))
            reached = autoscaler is not None and autoscaler.spec.get("reachability")
            if kind == REVISIONS and autoscaler is not None and ours(autoscaler):
                continue  # a version of Knative to which the revision's bounds mean nothing any more
            if kind in BEARERS and ours(thing) and reached and _bounds(thing) != version.finals[name]:
                yield f"{name} keeps {_bounds(thing)}, not {version.finals[name]}"


def k6_what_was_refused_is_no_target(version: Version) -> Iterator[str]:
    """A revision that was reverted is no target."""
    after = version.after
    if version.kind == ORCHESTRATORS and after is not None:
        refused = after.metadata.annotations.get(REFUSED, "")
        for each in after.spec.get("targetRevisions") or ():
            if each["revisionName"] in refused:
                yield f"{each['revisionName']} is refused: {refused}"


def k7_mistakes(recorded: Recording, since: int, until: int) -> list[str]:
    """What farmd let fall or move between two versions, while it was frozen; newcomers are held back yet."""
    found = []
    for version in recorded.history():
        before, after = version.before, version.after
        if not since < version.at <= until or before is None or after is None:
            continue
        named = _named(version.world)
        if version.kind in BEARERS and version.name in named and _fell(version):
            found.append(f"{version.at}: bounds of {version.name} fell to {_bounds(after)}")
        if version.kind == SERVICES and before.spec.get("traffic") != after.spec.get("traffic"):
            found.append(f"{version.at}: the traffic moved to {after.spec.get('traffic')}")
    return found


def _named(world: World) -> set[str]:
    """The revisions that a record names."""
    return {
        each["revisionName"]
        for (kind, _), record in world.items()
        if kind == ORCHESTRATORS
        for each in (*record.spec.get("initialRevisions", ()), *record.spec.get("targetRevisions", ()))
    }


RULES = (
    k1_traffic_is_whole_and_goes_to_ready_revisions,
    k2_capacity_falls_after_the_traffic,
    k3_a_stage_takes_no_more_than_there_was,
    k4_bounds_narrow_the_final_ones_which_stand_at_rest,
    k6_what_was_refused_is_no_target,
)


def _record(world: World, strategy: str) -> Thing | None:
    records = (each for (kind, _), each in world.items() if kind == ORCHESTRATORS)
    return next((each for each in records if each.spec.get("rolloutStrategy") == strategy), None)


def _least(entry: Mapping[str, Any]) -> int:
    """The pods that a revision gets in a stage whatever the traffic is."""
    return min(entry.get("targetReplicas", entry.get("minScale", 0)), entry.get("minScale", 0))


def _fell_on_record(version: Version) -> bool:
    """Whether the bounds of a stage fell on the StagePodAutoscaler, which has none before the first stage."""
    if version.kind != STAGE_AUTOSCALERS or version.after is None:
        return False
    return any(_lower(_staged(version, version.after), _staged(version, version.before)))


def _fell_below_the_record(version: Version) -> bool:
    """Whether farmd let bounds fall where they are read to less than the StagePodAutoscaler says."""
    if version.kind not in BEARERS or version.after is None or not _fell(version):
        return False
    record = version.world.get((STAGE_AUTOSCALERS, version.name))
    return any(_lower(_bounds(version.after), _staged(version, record)))


def _staged(version: Version, record: Thing | None) -> Bounds:
    """The bounds that a StagePodAutoscaler leaves of the final ones."""
    least, most = version.finals[version.name]
    spec = record.spec if record is not None else {}
    stage_least: int = spec.get("stageMinScale", least)
    stage_most: int = spec.get("stageMaxScale", 0)
    return min(least, stage_least), min(most or math.inf, stage_most or math.inf)


def _bounds(thing: Thing) -> tuple[int, int]:
    return bounds(thing.metadata.annotations, reachable=True)


def _fell(version: Version) -> bool:
    """Whether farmd let the least or the most pods fall."""
    if version.before is None or version.after is None:
        return False
    least, most = _lower(_bounds(version.after), _bounds(version.before))
    return (least and _wrote(version.after, MIN_SCALE)) or (most and _wrote(version.after, MAX_SCALE))


def _lower(new: Bounds, old: Bounds) -> tuple[bool, bool]:
    """Whether the least pods fell, and whether the most did; a most of 0 is no bound."""
    return new[0] < old[0], (new[1] or math.inf) < (old[1] or math.inf)


def _wrote(bearer: Thing, key: str) -> bool:
    """Whether farmd wrote a bound last; Knative copies later what stands on a revision, and then has it."""
    if key not in bearer.metadata.annotations:
        return ours(bearer)
    managers = managers_of(bearer.metadata, "metadata", "annotations", key)
    return any(each.manager == MANAGER for each in managers)
