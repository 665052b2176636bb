"""A compose project: its services as specs, in what order they come, and what they share.

``read`` is the one entry of this package. Services are named after their keys; their volumes are named after
the project, so that the ``data`` of two projects never meet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import msgspec

from farmd.compose import schema
from farmd.compose.files import ProjectContext, volume_name
from farmd.compose.load import Files, Loaded, load, placed
from farmd.compose.services import service_spec
from farmd.deploy.resolver import check
from farmd.deploy.spec import ServiceSpec
from store import codec
from store.deployments import MAX_GOALS, Condition
from store.errors import InputInvalid
from store.keys import valid_name
from store.mistakes import nearest, shown

LONGEST_CIRCLE = 10
_SERVICE = re.compile(r"[a-zA-Z0-9._-]+")
CONDITIONS: dict[str, Condition] = {
    "service_started": "started",
    "service_healthy": "healthy",
    "service_completed_successfully": "completed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What a compose file asks for.

    ``after``: for each service those that come before it, and what they must be: started, healthy or
    completed. ``external``: names of volumes that must exist. ``together``: whether its services stand on one
    machine, on which names of services work.
    """

    name: str
    services: Mapping[str, ServiceSpec]
    after: Mapping[str, Mapping[str, Condition]] = field(default_factory=dict)
    external: frozenset[str] = frozenset()
    together: bool = False
    warnings: tuple[str, ...] = ()


def read(
    paths: Sequence[str],
    files: Files,
    env: Mapping[str, str],
    *,
    name: str = "",
    profiles: Collection[str] = (),
    services: Collection[str] = (),
    with_files: bool = False,
) -> Project:
    """The project of some compose files, which are laid over one another.

    ``services`` are those that a person named; none: all of the active ``profiles``. ``with_files``: secrets
    and files of the person who deploys may be copied into Consul.

    Raises:
        InputInvalid: naming the file and the key.
    """
    loaded = load(paths, files, env, name)
    try:
        return _project(loaded, files, profiles, services, with_files=with_files)
    except InputInvalid as error:
        raise placed(error, paths, files, loaded.bases) from error


def _project(
    loaded: Loaded,
    files: Files,
    profiles: Collection[str],
    services: Collection[str],
    *,
    with_files: bool,
) -> Project:
    document = codec.parse_input(schema.Project, loaded.document, "")
    active = _active(document.services, profiles, services)
    if len(active) > MAX_GOALS:
        raise InputInvalid(f"services: found {len(active)} that are active, expected at most {MAX_GOALS}")
    remarks = _remarks(document, profiles)
    document = msgspec.structs.replace(document, services=active)
    project, prefix = loaded.project, document.farmd.prefix
    context = ProjectContext(
        document, project, loaded.folder, files, loaded.env, _awaited(document), with_files
    )
    names = _names(document.services, prefix)
    renamed = [
        f"services.{key}: becomes service {name}: names have only a-z, 0-9 and '-'"
        for key, name in names.items()
        if name != f"{prefix}{key}"
    ]
    specs = {}
    after = {}
    for key in sorted(document.services):
        spec = service_spec(names[key], key, document.services[key], context)
        check(spec)
        specs[spec.name] = spec
        after[spec.name] = _before(key, document, names)
    _check_circle(after)
    return Project(
        name=project,
        services=specs,
        after=after,
        external=_external(document, specs, project),
        together=_together(document, specs),
        warnings=(*loaded.warnings, *remarks, *renamed, *context.warnings),
    )


def _awaited(document: schema.Project) -> dict[str, str]:
    return {
        awaited: name
        for name, service in document.services.items()
        for awaited, dependency in service.depends_on.items()
        if CONDITIONS.get(dependency.condition) == "completed"
    }


def _external(document: schema.Project, specs: Mapping[str, ServiceSpec], project: str) -> frozenset[str]:
    """The volumes that must exist: those of other makers that a service mounts."""
    mounted = {each.volume_name for spec in specs.values() for each in spec.mounted()}
    declared = document.volumes.items()
    names = {volume_name(project, key, volume) for key, volume in declared if volume.external}
    return frozenset(names & mounted)


def _remarks(document: schema.Project, profiles: Collection[str]) -> list[str]:
    """What has no effect in the document as a whole."""
    known = {"*", *(each for service in document.services.values() for each in service.profiles)}
    return [f"no service has the profile {each!r}" for each in profiles if each not in known] + [
        f"networks.{key}.driver is ignored: networks here are bridges of one machine"
        for key, network in document.networks.items()
        if network.driver not in ("", "bridge", "default")
    ]


def _active(
    services: Mapping[str, schema.Service], profiles: Collection[str], named: Collection[str]
) -> dict[str, schema.Service]:
    """The services of the active profiles; or those that people name, and what these need, in any profile."""
    for name in named:
        if name not in services:
            raise InputInvalid(f"services: found no {name!r}{nearest(name, sorted(services))}")
    wanted: set[str] = set()
    waiting = list(named)
    if not named:
        chosen = set(profiles)
        waiting = [
            name
            for name, each in services.items()
            if not each.profiles or "*" in chosen or chosen & set(each.profiles)
        ]
    while waiting:
        name = waiting.pop()
        if name in services and name not in wanted:
            wanted.add(name)
            waiting += services[name].depends_on if named else ()
    return {name: each for name, each in services.items() if name in wanted}


def service_name(key: str) -> str:
    """What a service of a file is called here: ``My_db.v2`` is ``my-db-v2``.

    Raises:
        InputInvalid: a name that Compose would not take either, or a longer one than 63 letters.
    """
    if not _SERVICE.fullmatch(key):
        raise InputInvalid(
            f"services: found {shown(key)}, expected letters, digits, '_', '.' and '-'", field="services"
        )
    return valid_name(re.sub(r"[._]", "-", key.lower()).strip("-"), "services")


def _names(services: Collection[str], prefix: str) -> dict[str, str]:
    """The name of each service; two keys never mean one."""
    found: dict[str, str] = {}
    for key in sorted(services):
        name = f"{prefix}{service_name(key)}"
        if (other := next((each for each, taken in found.items() if taken == name), None)) is not None:
            raise InputInvalid(
                f"services: found {other!r} and {key!r}, which both become {name!r}; rename one",
                field="services",
            )
        found[key] = name
    return found


def _before(key: str, document: schema.Project, names: Mapping[str, str]) -> dict[str, Condition]:
    found: dict[str, Condition] = {}
    for other, dependency in document.services[key].depends_on.items():
        field_ = f"services.{key}.depends_on.{other}"
        if dependency.condition not in CONDITIONS:
            raise InputInvalid(
                f"{field_}.condition: found {shown(dependency.condition)}"
                f"{nearest(dependency.condition, sorted(CONDITIONS))}",
                field=field_,
            )
        if other in document.services:
            found[names[other]] = CONDITIONS[dependency.condition]
        elif dependency.required:
            raise InputInvalid(
                f"{field_}: found none of the services that are deployed"
                f"{nearest(other, sorted(document.services))}",
                field=field_,
            )
    return found


def _check_circle(after: Mapping[str, Mapping[str, str]]) -> None:
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        names = error.args[1][:0:-1]  # backwards: each needs the next; the last is the first again
        first = names.index(min(names))
        circle = [*names[first:], *names[:first], names[first]]
        told = circle if len(circle) <= LONGEST_CIRCLE else [*circle[:LONGEST_CIRCLE], "…"]
        raise InputInvalid(f"depends_on forms a cycle: {' -> '.join(told)}", field="depends_on") from error


def _together(document: schema.Project, specs: Mapping[str, ServiceSpec]) -> bool:
    """Whether all pods stand on one machine, as compose has them: so if each service has one pod."""
    if document.farmd.together is not None:
        return document.farmd.together
    return len(specs) > 1 and all(spec.mode == "replicated" and spec.replicas <= 1 for spec in specs.values())
