"""A plan for people, before it is carried out: what changes of each service, and on which machines.

No value of an environment is shown, only the names of its variables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farmd.commands.difference import manifest_lines
from farmd.deploy.manifest import manifest_of
from farmd.deploy.operations import (
    Operation,
    Plan,
    RemoveContainerOperation,
    ReplaceContainerOperation,
    RunContainerOperation,
    RunPreDeployOperation,
    StandingService,
    StopContainerOperation,
)
from farmd.deploy.project import ProjectPlan, ResolvedServices
from farmd.deploy.spec import ServiceSpec
from store.images import parse
from store.words import count_of, lasting

_SIGNS = {"start-first": "+/-", "stop-first": "-/+"}


Settings = Mapping[str, Sequence[str]]
"""For each service the settings that change, other than those of its pods."""


def lines(
    title: str, plan: ProjectPlan, wanted: ResolvedServices, machines: int, settings: Settings
) -> list[str]:
    """The whole plan, line by line."""
    services = count_of(len(plan.specs) + len(wanted.removed), "service")
    told = [f"{title}: {services} on {count_of(machines, 'machine')}"]
    told += [f"+ create volume {each.volume.volume_name} on {each.machine}" for each in plan.volumes]
    for each in plan.services:
        name = each.service_name
        told += _service(each, plan.specs.get(name), plan.standing.get(name), settings.get(name, ()))
    told += _crossing(plan, wanted)
    return [*told, summary(plan, settings)]


def summary(plan: ProjectPlan, settings: Settings) -> str:
    """How much there is to do, in one line."""
    counts = Counter(_verb(each) for service in plan.services for each in service.operations)
    parts = [count_of(len(plan.volumes), "volume")] if plan.volumes else []
    parts += [count_of(number, verb) for verb, number in sorted(counts.items())]
    short = sum(bool(each.short) for each in plan.services)
    parts += [f"no place for all pods of {count_of(short, 'service')}"] if short else []
    if not parts and settings:
        return f"other settings of {count_of(len(settings), 'service')}"
    return ", ".join(parts) or "all services are as they should be"


def document(plan: ProjectPlan, settings: Settings) -> dict[str, Any]:
    """The plan for programs."""
    return {
        "volumes": [{"name": each.volume.volume_name, "machine": each.machine} for each in plan.volumes],
        "services": [
            {
                "name": each.service_name,
                "new": each.service_name not in plan.standing,
                **_spec(plan.specs.get(each.service_name)),
                "operations": list(map(_operation, each.operations)),
                "settings": list(settings.get(each.service_name, ())),
                "short": list(each.short),
            }
            for each in plan.services
        ],
        "empty": plan.empty and not settings,
    }


def _spec(spec: ServiceSpec | None) -> dict[str, Any]:
    if spec is None:
        return {"removed": True}
    return {
        "removed": False,
        "mode": spec.mode,
        "replicas": spec.replicas,
        "image": spec.container.image,
    }


def _service(
    plan: Plan, spec: ServiceSpec | None, standing: StandingService | None, settings: Sequence[str]
) -> Iterator[str]:
    if spec is None:
        yield f"- remove service {plan.service_name}"
    elif not (plan.operations or plan.short or settings or standing is None):
        return
    else:
        count = "global" if spec.mode == "global" else str(spec.replicas)
        verb = "+ create" if standing is None else "~ update"
        yield f"{verb} service {spec.name} ({count})  {_change(spec, standing)}".rstrip()
    if settings:
        yield f"    settings     {', '.join(settings)}"
    for step, note, places in _grouped(plan):
        yield f"    {step:<13}{', '.join(places)}{'   ' + note if note else ''}"
    for text in plan.short:
        yield f"    no place     {text}"


def _change(spec: ServiceSpec, standing: StandingService | None) -> str:
    """What is other about a service: its image, and which parts of its pods."""
    pods = standing.containers if standing is not None else ()
    before = next((pod.spec for pod in pods if pod.spec is not None), None)
    if before is None:
        return parse(spec.container.image).short
    told = []
    if before.container.image != spec.container.image:
        told.append(_images(before.container.image, spec.container.image))
    for line in manifest_lines(manifest_of(before), manifest_of(spec)):
        part, _, change = line.removeprefix("pod.").partition(": ")
        told.append(f"{part}: {change}" if part in ("env", "secrets") else part)
    if told and before.container.image != spec.container.image:
        told = [text for text in told if text != "container"]
    return "; ".join(told)


def _images(old: str, new: str) -> str:
    """Two images; of one repository what differs: ``web:1.4 -> :1.5 (sha256:9a0e41b7 -> 77b1c0de)``."""
    before, after = parse(old), parse(new)
    if before.familiar != after.familiar:
        return f"{before.short} -> {after.short}"
    tags = f":{before.tag or 'latest'}", f":{after.tag or 'latest'}"
    told = f"{before.familiar}{tags[0]}{f' -> {tags[1]}' if tags[0] != tags[1] else ''}"
    first, second = _beginning(before.digest), _beginning(after.digest)
    if not (first or second) or first == second:
        return told
    return f"{told} ({f'sha256:{first}' if first else 'unpinned'} -> {second or 'unpinned'})"


def _beginning(digest: str) -> str:
    return digest.removeprefix("sha256:")[:8]


def _grouped(plan: Plan) -> list[tuple[str, str, list[str]]]:
    """(sign and verb, note, places): one line for all operations that are alike, in the plan's order."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in plan.operations:
        if isinstance(each, RunPreDeployOperation):
            words = " ".join(each.spec.pre_deploy.command) if each.spec.pre_deploy else ""
            limit = f", at most {lasting(each.spec.pre_deploy.timeout)}" if each.spec.pre_deploy else ""
            groups.setdefault(("hook", ""), []).append(f"{words} on {each.machine}{limit}")
        elif isinstance(each, RunContainerOperation):
            groups.setdefault(("+ run", ""), []).append(f"on {each.machine}")
        elif isinstance(each, ReplaceContainerOperation):
            note = f"{each.order}{': ' + each.why if each.why else ''}"
            groups.setdefault((f"{_SIGNS[each.order]} replace", note), []).append(_at(each.place))
        elif isinstance(each, RemoveContainerOperation | StopContainerOperation):
            groups.setdefault((f"- {_verb(each)}", ""), []).append(_at(each.place))
    return [(verb, note, _counted(places)) for (verb, note), places in groups.items()]


def _counted(places: list[str]) -> list[str]:
    """Each place once, with its number of occurrences."""
    return [f"{place}{f' ({number})' if number > 1 else ''}" for place, number in Counter(places).items()]


def _crossing(plan: ProjectPlan, wanted: ResolvedServices) -> Iterator[str]:
    """Services that name one another and run on different machines: names work only within a machine."""
    machines = {
        each.service_name: _machines(each, plan.standing.get(each.service_name)) for each in plan.services
    }
    for name, others in sorted(wanted.after.items()):
        for other in sorted(others):
            if not machines.get(name, set()) <= machines.get(other, set()):
                yield f"! {name} needs {other}, which is not on all of its machines: names work on one alone"


def _machines(plan: Plan, standing: StandingService | None) -> set[str]:
    """The machines on which a service will run."""
    found = {pod.place[0] for pod in standing.containers} if standing is not None else set()
    found -= {each.place[0] for each in plan.operations if isinstance(each, RemoveContainerOperation)}
    return found | {each.machine for each in plan.operations if isinstance(each, RunContainerOperation)}


def _verb(operation: Operation) -> str:
    if isinstance(operation, RunContainerOperation):
        return "run"
    if isinstance(operation, ReplaceContainerOperation):
        return "replacement"
    if isinstance(operation, StopContainerOperation):
        return "stop"
    return "hook" if isinstance(operation, RunPreDeployOperation) else "remove"


def _operation(operation: Operation) -> Mapping[str, Any]:
    place = getattr(operation, "place", None)
    machine = place[0] if place is not None else getattr(operation, "machine", "")
    told: dict[str, Any] = {"operation": _verb(operation), "machine": machine}
    if place is not None:
        told["instance"] = place[1]
    if isinstance(operation, ReplaceContainerOperation):
        told |= {"order": operation.order, "why": operation.why}
    return told


def _at(place: tuple[str, str]) -> str:
    return f"{place[1]} on {place[0]}"
