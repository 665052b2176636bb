"""The noun of replication controllers, and ``set-replicas``, which other nouns lack."""

from __future__ import annotations

from farmd.commands.mutation import Call, Mutation
from farmd.commands.noun import Noun
from farmd.commands.outlook import Placing, availability, counted
from farmd.commands.specs import changed, check_count
from farmd.replication.outlook import outlook
from farmd.replication.spec import FILE, ControllerSpec
from scheduler.model import PlacementRequest
from store import selectors
from store.labels import pod_labels
from store.manifests import Manifest
from store.rcs import KIND, ReplicationController
from store.status import Status
from store.words import count_of


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
    return [
        ("Replicas", counts),
        ("A node", f"at most {rc.replicas_per_node}"),
        ("Unavailable", f"at most {rc.unavailable_limit}"),
        availability(rc.min_healthy_time),
        ("Strategy", f"{rc.strategy}, on a lost node: {rc.on_lost}"),
    ]


RC: Noun[ControllerSpec, ReplicationController] = Noun(
    kind=KIND,
    document="ReplicationController",
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
    other_ways=", farmctl rc set-replicas its count",
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
