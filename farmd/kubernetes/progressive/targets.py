"""Where a rollout begins and where it must end, as target revisions: pure (Knative's
``pkg/reconciler/service/resources``).

What a person asked of the traffic stands on record as ``follow``: ``latest``, or shares by names
(``web-00001=30,latest=70``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from farmd.kubernetes.progressive.bounds import bounded, final, read_service_bounds
from farmd.kubernetes.progressive.conditions import READY, STAGE_READY, known
from farmd.kubernetes.progressive.model import Snapshot
from farmd.kubernetes.progressive.objects import OrchestratorSpec, TrafficTarget
from farmd.kubernetes.progressive.traffic import actual
from farmd.rollout.staging import TargetRevision

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
