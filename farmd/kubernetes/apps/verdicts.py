"""How far an object is, by the rules that kstatus reads them by: pure.

What must never break: nothing is ready as long as its controller has not seen its last change; and a status
of a form that only its own kind knows says nothing, and ends no worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from farmd.commands.bundled import Readiness

Found = Mapping[str, Any]
READY = Readiness("ready")


def judge(found: Found) -> Readiness:
    """The verdict on an object as the server has it."""
    going = leaving(found)
    return Readiness("progressing", going) if going else judge_last(found)


def leaving(found: Found) -> str:
    """That an object is being deleted, and what holds it; empty: it is not."""
    meta = found["metadata"]
    if not meta.get("deletionTimestamp"):
        return ""
    left = ", ".join(meta.get("finalizers") or ())
    return f"is being deleted{f', held by {left}' if left else ''}"


def judge_last(found: Found) -> Readiness:
    """How far an object is, or was when it began to go."""
    meta, status = found["metadata"], found.get("status")
    status = status if isinstance(status, Mapping) else {}
    seen = status.get("observedGeneration")
    if isinstance(seen, int) and seen < meta.get("generation", 0):
        return Readiness("progressing", "its controller has not seen the last change")
    group = found["apiVersion"].rpartition("/")[0]
    rule = _RULES.get((group, found["kind"]), _by_conditions)
    return rule(found, status)


def _condition(status: Found, kind: str) -> Mapping[str, Any]:
    said = status.get("conditions")
    told = [each for each in said if isinstance(each, Mapping)] if isinstance(said, list) else []
    return next((each for each in told if each.get("type") == kind), {})


def _told(condition: Mapping[str, Any]) -> str:
    said = (condition.get("reason"), condition.get("message"))
    return ": ".join(text for text in said if text and isinstance(text, str))


def _waits(text: str) -> Readiness:
    return Readiness("progressing", text)


def _by_conditions(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    """Any other kind: its Ready condition, if it has one; else it is ready as soon as it is there."""
    for kind in ("Ready", "Available"):
        if condition := _condition(status, kind):
            if condition.get("status") == "True":
                return READY
            stalled = _condition(status, "Stalled").get("status") == "True"
            return Readiness(
                "failed" if stalled else "progressing", _told(condition) or f"{kind} is not True"
            )
    return READY


def _deployment(found: Found, status: Found) -> Readiness:
    wanted = found["spec"].get("replicas", 1)
    progress = _condition(status, "Progressing")
    if progress.get("reason") == "ProgressDeadlineExceeded":
        return Readiness("failed", _told(progress))
    if "observedGeneration" not in status:
        return _waits("its controller has not seen it")
    updated, total = status.get("updatedReplicas", 0), status.get("replicas", 0)
    if updated < wanted:
        return _waits(f"{updated} of {wanted} updated")
    if total > updated:
        return _waits(f"{total - updated} old pods to go")
    available = status.get("availableReplicas", 0)
    return READY if available >= wanted else _waits(f"{available} of {wanted} available")


def _stateful_set(found: Found, status: Found) -> Readiness:
    spec = found["spec"]
    wanted = spec.get("replicas", 1)
    if "observedGeneration" not in status:
        return _waits("its controller has not seen it")
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return READY
    ready = status.get("readyReplicas", 0)
    if ready < wanted:
        return _waits(f"{ready} of {wanted} ready")
    partition = (strategy.get("rollingUpdate") or {}).get("partition") or 0
    updated = status.get("updatedReplicas", 0)
    if updated < wanted - partition:
        return _waits(f"{updated} of {wanted - partition} updated")
    if not partition and status.get("currentRevision") != status.get("updateRevision"):
        return _waits("the last pods are updated")
    return READY


def _daemon_set(found: Found, status: Found) -> Readiness:
    if "observedGeneration" not in status:
        return _waits("its controller has not seen it")
    wanted = status.get("desiredNumberScheduled", 0)
    on_delete = (found["spec"].get("updateStrategy") or {}).get("type") == "OnDelete"
    for field, word in (("updatedNumberScheduled", "updated"), ("numberAvailable", "available")):
        if not (on_delete and word == "updated") and status.get(field, 0) < wanted:
            return _waits(f"{status.get(field, 0)} of {wanted} {word}")
    return READY


def _job(found: Found, status: Found) -> Readiness:
    if (failed := _condition(status, "Failed")).get("status") == "True":
        return Readiness("failed", _told(failed))
    if any(_condition(status, kind).get("status") == "True" for kind in ("Complete", "Succeeded")):
        return READY
    return _waits(f"{status.get('succeeded', 0)} of {found['spec'].get('completions', 1)} succeeded")


def _farm_job(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    if (failed := _condition(status, "Failed")).get("status") == "True":
        return Readiness("failed", _told(failed))
    done = _condition(status, "Succeeded").get("status") == "True"
    return READY if done else _waits("it has not succeeded")


def _pod(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return (
            READY if phase == "Succeeded" else Readiness("failed", status.get("message") or "the pod failed")
        )
    ready = _condition(status, "Ready")
    return READY if ready.get("status") == "True" else _waits(_told(ready) or f"phase {phase}")


def _claim(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    """A claim that is not bound holds nothing up: its class may bind it when the first pod asks for it, which
    a later wave may have. A pod whose claim is not bound does not start, and that is told of the pod.
    """
    return Readiness("failed", "its volume is lost") if status.get("phase") == "Lost" else READY


def _definition(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    refused = _condition(status, "NamesAccepted")
    if refused.get("status") == "False":
        return Readiness("failed", _told(refused))
    there = _condition(status, "Established").get("status") == "True"
    return READY if there else _waits("it is not established")


def _service(found: Found, status: Found) -> Readiness:
    if found["spec"].get("type") != "LoadBalancer":
        return READY
    there = (status.get("loadBalancer") or {}).get("ingress")
    return READY if there else _waits("it has no address of a load balancer")


def _namespace(found: Found, status: Found) -> Readiness:  # noqa: ARG001
    phase = status.get("phase", "Active")
    return READY if phase == "Active" else _waits(f"phase {phase}")


_RULES: dict[tuple[str, str], Callable[[Found, Found], Readiness]] = {
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("batch", "Job"): _job,
    ("farmd.io", "FarmJob"): _farm_job,
    ("", "Pod"): _pod,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "Service"): _service,
    ("", "Namespace"): _namespace,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
}
