"""The noun of replication controllers, the file that people write, and what a change will do."""

from __future__ import annotations

import msgspec

from farmd.commands import specs
from farmd.commands.mutation import Call, Mutation
from farmd.commands.noun import Noun
from farmd.commands.outlook import Outlook, OutlookFacts, Placing, availability, counted
from farmd.commands.specs import changed, check_count, check_policy
from farmd.overview import PodRow
from scheduler.model import PlacementRequest
from store import selectors
from store.labels import pod_labels
from store.manifests import Manifest
from store.pods import Place
from store.policies import Policy
from store.quantities import Seconds
from store.rcs import OnLost, ReplicationController, Strategy
from store.status import Status
from store.words import count_of

# What becomes of a controller's pods if its record is changed: pure, for ``--dry-run``.


def outlook(rc: ReplicationController, standing: OutlookFacts) -> Outlook:
    """The outlook for a controller as it will be."""
    from scheduler.decide import allocation, eligibility

    if rc.disabled:
        return Outlook()
    pods, view, request = standing.pods, standing.view, standing.request
    retained = set(eligibility(request, view).retained)

    def order(place: Place) -> tuple[bool, bool, float, Place]:
        # As the plan removes pods, but for how long a pod has been healthy, which only farms know.
        row: PodRow = pods[place]
        return place[0] in retained, row.healthy, -row.placed_at, place

    surplus = max(0, len(pods) - rc.replicas_desired)
    removes = tuple(sorted(pods, key=order)[:surplus])
    stays = sorted(pods.keys() - set(removes))
    leaving = [place for place in stays if rc.strategy == "dynamic" and place[0] not in retained]
    missing = max(0, rc.replicas_desired - len(pods))
    asked = msgspec.structs.replace(request, leaving=frozenset(leaving))
    found = allocation(asked, missing + len(leaving), view)
    places = [(goal.node, goal.instance) for goal in found.assignments]
    moves = tuple(zip(leaving, places[missing:], strict=False))
    moved = {old for old, _ in moves}
    return Outlook(
        adds=tuple(places[:missing]),
        removes=removes,
        replaces=standing.outdated(set(stays) - moved, rc),
        moves=moves,
        unplaced=(found.why,) if found.why else (),
    )


# The file of a replication controller, as people write it (docs/cli.md).


class ControllerSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of an RC file; ``replicas`` may be left out where a controller exists already."""

    name: str
    pod: Manifest
    replicas: int | None = None
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    replicas_per_node: int = 1
    max_unavailable: int | str = 1
    strategy: Strategy = "static"
    on_lost: OnLost = "replace"
    unhealthy_after: Seconds = 300.0
    transfer_timeout: Seconds = 300.0
    min_healthy_time: Seconds = 10.0
    disabled: bool | None = None
    needs: list[str] = []
    rollout: Policy | None = None
    follow: bool = False


def _check(spec: ControllerSpec, source: str) -> None:
    if spec.replicas is not None:
        specs.check_count(spec.replicas, f"{source}: replicas")
    specs.check_count(spec.replicas_per_node, f"{source}: replicas_per_node", lowest=1)
    specs.check_share(spec.max_unavailable, f"{source}: max_unavailable")
    specs.check_seconds(spec.unhealthy_after, f"{source}: unhealthy_after")
    specs.check_seconds(spec.transfer_timeout, f"{source}: transfer_timeout", lowest=1.0)
    if spec.rollout is not None:
        check_policy(spec.rollout, f"{source}: rollout")
    specs.check_follow(spec, source)


FILE = specs.SpecFile(
    spec=ControllerSpec,
    record=ReplicationController,
    check=_check,
    names={"replicas": "replicas_desired"},
    kept={"replicas": "a whole number, 0 or more", "disabled": ""},
    shares={"max_unavailable": "max_unavailable_percent"},
)


# The noun of replication controllers, and ``set-replicas``, which other nouns lack.


def request(rc: ReplicationController, manifest: Manifest) -> PlacementRequest:
    """The request to the scheduler for pods of a controller."""
    return PlacementRequest(
        manifest=manifest,
        selector=selectors.parse(rc.node_selector),
        owner=rc.id,
        labels=pod_labels(rc, manifest),
        replicas_per_node=rc.replicas_per_node,
        numbered=rc.numbered,
    )


def _remains(rc: ReplicationController, pods: int) -> str:
    if not (rc.replicas_desired or pods):
        return ""
    return (
        f"wants {count_of(rc.replicas_desired, 'replica')} and has {count_of(pods, 'pod')}, expected 0 and 0"
    )


def _facts(rc: ReplicationController, status: Status | None) -> list[tuple[str, str]]:
    counts = f"{rc.replicas_desired} desired"
    if status is not None:
        counts += f", {counted(status)}"
    follows = [("Follows", "the config keys of its pods")] if rc.follow else []
    return [
        ("Replicas", counts),
        ("Per node", f"at most {rc.replicas_per_node}"),
        ("Unavailable", f"at most {rc.unavailable_limit}"),
        availability(rc.min_healthy_time),
        ("Strategy", f"{rc.strategy}, on a lost node: {rc.on_lost}"),
        *follows,
    ]


RC: Noun[ControllerSpec, ReplicationController] = Noun(
    file=FILE,
    pods=Placing(
        request=request,
        wanted=lambda rc: rc.replicas_desired > 0,
        remains=_remains,
        shrinks=lambda before, after: after.replicas_desired < before.replicas_desired,
        outlook=outlook,
        in_place="has at most max_unavailable pods down at a time",
        pace="at most max_unavailable at a time",
        emptied={"replicas_desired": 0},
        way_out="scale it to 0 first, or let --cascade remove the pods",
    ),
    told=lambda rc: {"replicas": rc.replicas_desired},
    facts=_facts,
    membership=frozenset({"replicas_desired", "manifest"}),
)


async def set_replicas(call: Call, target: str, replicas: int) -> Mutation:
    """Set the desired count of the controller with that name or id.

    Raises:
        InputInvalid: a negative or absurd count.
        Conflict: it is managed (R14), being deleted, or locked (R13).
    """
    check_count(replicas, "replicas")
    stored, held = await RC.editable(call, target, membership=True)
    return await RC.edit(
        call, stored, changed(stored.record, replicas_desired=replicas), held, "set-replicas"
    )
