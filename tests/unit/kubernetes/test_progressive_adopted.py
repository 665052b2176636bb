"""Objects of Knative's serving-progressive-rollout in each of their states, as its controllers leave them.

They decode, and farms go on with them to the same end.
"""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from farmd.kubernetes.knative import scales as knative_scales
from farmd.kubernetes.knative.facts import Bounds
from farmd.kubernetes.knative.objects import Orchestrator, StageAutoscaler
from farmd.kubernetes.knative.settings import Settings
from tests.knative_model import LATEST
from tests.unit.kubernetes.test_progressive_properties import NEW, OLD, Checked

FOUR = {"minScale": 4, "maxScale": 4}
BEGAN = [{"revisionName": OLD, "latestRevision": False, "percent": 100, **FOUR}]
ENDS = [{"revisionName": NEW, "latestRevision": True, "percent": 100, **FOUR}]
AT = "2025-11-03T10:00:00Z"


def stage(*shares: tuple[str, int | None, int, str]) -> list[dict[str, Any]]:
    """A stage as it stands in the record: a share of nil is left out."""
    return [
        {"revisionName": name, "targetReplicas": pods, "direction": way, **FOUR}
        | ({} if percent is None else {"percent": percent})
        for name, percent, pods, way in shares
    ]


HALF = stage((OLD, 50, 2, "down"), (NEW, 50, 2, "up"))
LAST = stage((OLD, None, 0, "down"), (NEW, 100, 4, "up"))
START, ROLLING = "StageRevisionStart", "RevisionRollingInProgress"


def conditions(up: str, down: str, done: str, last: str) -> list[dict[str, str]]:
    """The conditions of a record, sorted by their types as the framework writes them."""
    ready = "True" if done == last == "True" else "Unknown"
    found = []
    for kind, status in (
        ("LastStageReady", last),
        ("Ready", ready),
        ("StageReady", done),
        ("StageScaleDownReady", down),
        ("StageScaleUpReady", up),
    ):
        reason = ROLLING if kind in ("LastStageReady", "Ready") else START
        entry = {"type": kind, "status": status, "lastTransitionTime": AT}
        entry |= {"reason": reason} if status == "Unknown" else {}
        found.append(entry | ({"severity": "Info"} if kind.startswith("StageScale") else {}))
    return found


def record(goal: list[dict[str, Any]], finished: Any, marks: tuple[str, ...], observed: int = 2) -> str:
    """A RolloutOrchestrator as the API server has it; without marks nobody has looked at it yet."""
    status = {"stageRevisionStatus": finished, "observedGeneration": observed}
    if marks:
        status["conditions"] = conditions(*marks)
    reference = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "web", "uid": "uid-web"}
    meta = {
        "name": "web",
        "namespace": "shop",
        "uid": "record",
        "generation": 2,
        "resourceVersion": "7",
        "labels": {"serving.knative.dev/service": "web"},
        "ownerReferences": [reference | {"controller": True, "blockOwnerDeletion": True}],
    }
    spec = {"initialRevisions": BEGAN, "targetRevisions": ENDS, "stageTargetRevisions": goal}
    spec |= {"targetFinishTime": None, "rolloutStrategy": "availability"}
    found = {"apiVersion": "serving.knative.dev/v1", "kind": "RolloutOrchestrator", "metadata": meta}
    return json.dumps(found | {"spec": spec} | ({"status": status} if marks else {}))


def autoscaler(name: str, spec: dict[str, int], **status: int) -> str:
    """A StagePodAutoscaler as the API server has it; one without numbers is not observed yet."""
    ready = "True" if status else "Unknown"
    kinds = [
        {"type": kind, "status": ready, "lastTransitionTime": AT}
        | ({} if status else {"reason": "PodAutoscalerStageNotReady"})
        for kind in ("PodAutoscalerStageReady", "Ready")
    ]
    labels = {"serving.knative.dev/revision": name, "serving.knative.dev/service": "web"}
    meta = {"name": name, "namespace": "shop", "uid": f"spa-{name}", "labels": labels, "generation": 1}
    return json.dumps(
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "StagePodAutoscaler",
            "metadata": meta,
            "spec": spec,
            "status": {"conditions": kinds, "observedGeneration": 1, **status},
        }
    )


def bounded(least: int, most: int) -> dict[str, int]:
    return {"stageMinScale": least, "stageMaxScale": most}


GROWS = autoscaler(NEW, bounded(2, 2), desiredScale=2, actualScale=1, replicasTerminating=0)
GROWN = autoscaler(NEW, bounded(2, 2), desiredScale=2, actualScale=2, replicasTerminating=0)
SHRINKS = autoscaler(OLD, bounded(2, 2), desiredScale=2, actualScale=2, replicasTerminating=2)
DRAINED = autoscaler(OLD, bounded(0, 1), desiredScale=0, actualScale=0, replicasTerminating=0)
WHOLE = autoscaler(NEW, bounded(4, 4), desiredScale=4, actualScale=4, replicasTerminating=0)
MARKED = autoscaler(NEW, bounded(0, 0))
FREE = autoscaler(NEW, {})

STATES = {
    "nobody looked at it": (record(HALF, [], (), 0), [FREE]),
    "the newcomer waits for room": (record(HALF, [], ("Unknown",) * 4), [MARKED]),
    "the newcomer grows": (record(HALF, [], ("Unknown",) * 4), [GROWS]),
    "the old one shrinks": (record(HALF, [], ("True", "Unknown", "Unknown", "Unknown")), [GROWN, SHRINKS]),
    "a stage is done": (record(HALF, HALF, ("True", "True", "True", "Unknown")), [GROWN, SHRINKS]),
    "another stage is not observed": (
        record(LAST, HALF, ("True", "True", "True", "Unknown"), 1),
        [GROWN, SHRINKS],
    ),
    "the last stage": (record(LAST, HALF, ("Unknown",) * 4), [WHOLE, SHRINKS]),
    "over": (record(LAST, ENDS, ("True",) * 4), [WHOLE, DRAINED]),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("strategy", ["availability", "resourceutil"])
def test_a_rollout_of_the_extension_goes_on_to_its_end(state: str, strategy: str) -> None:
    text, scales = STATES[state]
    world = Checked(random.Random(state).randrange(1000), Settings(ratio=50, strategy=strategy), Bounds(4, 4))
    world.settle()
    world.push(Bounds(4, 4))
    world.pin(*LATEST, by="kubectl")  # the extension wrote the route, and never the service
    world.record = msgspec.json.decode(text, type=Orchestrator)
    found = [msgspec.json.decode(each, type=StageAutoscaler) for each in scales]
    world.spas = {each.metadata.name: each for each in found}
    shares = {each.revision_name: each.percent for each in world.record.status.stage_revision_status}
    world.shares = {name: share for name, share in shares.items() if share} or {OLD: 100}
    for each in found:
        scale = world.revisions[each.metadata.name]
        scale.pods = each.status.actual_scale or 0
        scale.ending, scale.ready = each.status.replicas_terminating or 0, scale.ready or scale.pods > 0
    world.settle()
    world.rests(NEW)
    assert knative_scales.rollout(world.snapshot()).ready is True
