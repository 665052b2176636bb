"""The objects by which schedulers of gangs know a job: one flavour a scheduler, from its file in ``gangs/``.

A flavour is an object with the job's name, a marker on each pod, and the phases in which pods must not exist
yet. What must never break: the object depends on the job alone, so an equal one is never written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from farmd.jobs.model import Gang, Slot
from farmd.jobs.names import gen_labels, gen_owner_reference, job_selector
from farmd.jobs.ports import ControllerInterface
from farmd.jobs.resources.requests import min_resources
from farmd.jobs.resources.resource import Resource

Source = Literal["members", "resources", "queue", "priority_class", "timeout", "selector"]
"""A value of an object's spec: how many members need a place together, what they ask for, what people say."""
Word = Literal["job", "type"]
"""A value of a pod's marker: the job's name, or the pod's type in lower case."""


class Flavour(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One scheduler of gangs. Keys of ``spec``, of the object, and of ``pod``, the pod's spec, are paths with
    dots. ``scheduler`` is set where a template names none. ``waits``: phases in which no pod is created.
    """

    group: str
    version: str
    plural: str
    kind: str
    spec: dict[str, Source]
    scheduler: str = ""
    annotations: dict[str, Word] = {}
    labels: dict[str, Word] = {}
    pod: dict[str, Word] = {}
    waits: frozenset[str] = frozenset()


@cache
def flavours() -> dict[str, Flavour]:
    """All flavours by name: ``volcano``."""
    files = [
        each
        for each in resources.files("farmd.jobs.resources.gangs").iterdir()
        if each.name.endswith(".toml")
    ]
    named = sorted(files, key=lambda each: each.name)
    return {
        each.name.removesuffix(".toml"): msgspec.toml.decode(each.read_bytes(), type=Flavour)
        for each in named
    }


def no_priority(name: str) -> int:  # noqa: ARG001
    """The value of a priority class where nobody knows the classes: types count in their order."""
    return 0


def group_body(
    flavour: Flavour,
    controller: ControllerInterface,
    of: Resource,
    priorities: Callable[[str], int] = no_priority,
) -> dict[str, Any]:
    """The object that stands for a job's gang, with the job's annotations and the labels of its members;
    ``priorities`` tells the value of a priority class.
    """
    meta = {
        "name": of.metadata.name,
        "namespace": of.metadata.namespace,
        "labels": gen_labels(controller, of.metadata.name),
        "annotations": of.metadata.annotations,
        "ownerReferences": [msgspec.to_builtins(gen_owner_reference(controller, of))],
    }
    values = _values(controller, of, priorities)
    spec: dict[str, Any] = {}
    for path, source in flavour.spec.items():
        if (value := values[source]()) not in (None, ""):
            _put(spec, path, value)
    version = f"{flavour.group}/{flavour.version}"
    return {"apiVersion": version, "kind": flavour.kind, "metadata": meta, "spec": spec}


def mark(flavour: Flavour, of: Resource, slot: Slot, body: dict[str, Any]) -> str:
    """Mark a pod's body as a member of its gang; returns another scheduler that its template names, or ""."""
    words: dict[Word, str] = {"job": of.metadata.name, "type": slot.type.lower()}
    meta, spec = body["metadata"], body["spec"]
    for name, marks in (("annotations", flavour.annotations), ("labels", flavour.labels)):
        meta[name] = {**(meta.get(name) or {}), **{key: words[word] for key, word in marks.items()}}
    for path, word in flavour.pod.items():
        _put(spec, path, words[word])
    if not flavour.scheduler:
        return ""
    found: str = spec.setdefault("schedulerName", flavour.scheduler)
    return "" if found == flavour.scheduler else found


def state(flavour: Flavour, found: Mapping[str, Any] | None) -> Gang:
    """The state of a gang's object; None: it is not there."""
    if found is None:
        return "absent"
    return "waiting" if (found.get("status") or {}).get("phase", "") in flavour.waits else "ready"


def differs(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object's spec that are not as wanted; those that it has besides are others' to set."""
    before = found.get("spec") or {}
    return {name: value for name, value in wanted["spec"].items() if not _within(value, before.get(name))}


def _within(wanted: Any, found: Any) -> bool:
    """Whether a value is as wanted; a mapping may have more fields, as a server's defaults."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(_within(value, found.get(name)) for name, value in wanted.items())
    return bool(wanted == found)


def _values(
    controller: ControllerInterface, of: Resource, priorities: Callable[[str], int]
) -> dict[Source, Callable[[], Any]]:
    policy = of.scheduling
    given = policy.min_resources
    return {
        "members": lambda: of.members,
        "resources": lambda: min_resources(of, of.members, priorities) if given is None else given,
        "queue": lambda: policy.queue,
        "priority_class": lambda: policy.priority_class,
        "timeout": lambda: policy.schedule_timeout_seconds,
        "selector": lambda: job_selector(controller, of.metadata.name),
    }


def _put(into: dict[str, Any], path: str, value: Any) -> None:
    """Set the field of a path with dots."""
    *parents, last = path.split(".")
    for parent in parents:
        into = into.setdefault(parent, {})
    into[last] = value
