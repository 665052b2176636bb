"""The objects by which schedulers of gangs know a job: one flavour a scheduler, from its file in ``gangs/``.

A flavour is an object with the job's name, a marker on each pod, and the phases in which pods must not exist
yet. What must never break: the object depends on the job alone, so an equal one is never written again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from farmd.jobs.facts import Gang, Slot
from farmd.kubernetes.jobs.bodies import containers
from farmd.kubernetes.jobs.names import gen_labels, gen_owner_reference, job_selector
from farmd.kubernetes.jobs.protocols import ControllerInterface
from farmd.kubernetes.jobs.resource import Resource
from store.errors import InputInvalid

# What the members of a gang ask for together, so that a scheduler can tell whether they fit.

_UNITS = {"": Fraction(1), "m": Fraction(1, 10**3), "u": Fraction(1, 10**6), "n": Fraction(1, 10**9)}
_UNITS |= {letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)}
_UNITS |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)}
_QUANTITY = re.compile(rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]{{1,2}})|({'|'.join(_UNITS)}))")


def quantity(text: str | int | float, field: str = "quantity") -> Fraction:
    """The number of ``2``, ``500m``, ``64Mi`` or ``1e3``.

    Raises:
        InputInvalid: no such text.
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise InputInvalid(f"{field}: found {text!r}, expected a quantity such as 500m or 64Mi")
    digits, exponent, unit = found.groups()
    return Fraction(digits + (exponent or "")) * _UNITS[unit or ""]


def written(number: Fraction) -> str:
    """A quantity as the API writes it: whole, or in thousandths, rounded up."""
    if number.denominator == 1:
        return str(number.numerator)
    return f"{-(-number.numerator * 1000 // number.denominator)}m"


def min_resources(of: Resource, members: int, priorities: Callable[[str], int]) -> dict[str, str]:
    """The requests of so many members, those of the highest priority first; of equal ones in the order of
    types.

    A container without requests counts by its limits. Init containers do not count.
    """
    ranked = sorted(of.job.types, key=lambda kind: -_priority(of.templates[kind.name], priorities))
    total: dict[str, Fraction] = {}
    left = members
    for kind in ranked:
        count = min(left, kind.replicas)
        left -= count
        for name, amount in _requests(of.templates[kind.name]).items():
            total[name] = total.get(name, Fraction(0)) + amount * count
    return {name: written(amount) for name, amount in sorted(total.items()) if amount}


def _priority(template: Mapping[str, Any], priorities: Callable[[str], int]) -> int:
    name = (template.get("spec") or {}).get("priorityClassName") or ""
    return priorities(name) if name else 0


def _requests(template: Mapping[str, Any]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for container in containers(template):
        asked = container.get("resources") or {}
        requests = asked.get("limits") if asked.get("requests") is None else asked["requests"]
        for name, text in (requests or {}).items():
            total[name] = total.get(name, Fraction(0)) + quantity(text, name)
    return total


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
        for each in resources.files("farmd.kubernetes.jobs.gangs").iterdir()
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
