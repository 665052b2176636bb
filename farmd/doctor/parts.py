"""Finds what belonged to something that is gone: parts of a service, volumes that were made for one, names of
volumes that no node has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from farmd.doctor.model import Finding, Removal
from farmd.doctor.survey import Survey
from farmd.kinds import title
from store import codec
from store.apps import KIND as APPS
from store.apps import TRACKERS
from store.families import FAMILIES
from store.nodes import KIND as VOLUMES
from store.nodes import Node
from store.services import KIND as SERVICES
from store.services import Service


def check(survey: Survey) -> list[Finding]:
    """The findings; none while a tree that matters is in doubt."""
    if not survey.proven(SERVICES, APPS, "nodes"):
        return []
    found = [*_parts(survey), *_fields(survey), *_trackers(survey)]
    return [*found, *_volumes(survey), *_names(survey)]


def _parts(survey: Survey) -> Iterator[Finding]:
    """Parts of records that are gone. People may not change them, and nothing else ever will."""
    for entry, record in survey.named():
        of, _, item = getattr(record, "part_of", "").partition("/")
        whole = survey.keys.record(of, item)
        if of not in FAMILIES or whole in survey.trees[of]:
            continue
        key, value = survey.short(entry.key), codec.rewrite(_freed(record), entry.value)
        way = "a new deployment of the service takes it back; otherwise " if of == SERVICES else ""
        family, frees = key.partition("/")[0], ((entry.key, entry.modify_index, value),)
        yield Finding(
            "part-of-nobody",
            key,
            f"{title(family, record.name)} is part of {of}/{item}, which does not exist",
            f"{way}farmctl doctor --fix {key} releases it; its pods stay",
            Removal(family, record.id, (), absent=(whole,), frees=frees),
        )


def _freed(record: Any) -> Any:
    return replace(record, part_of="", **({"open": []} if hasattr(record, "open") else {}))


def _fields(survey: Survey) -> Iterator[Finding]:
    """Fields of nodes that the files of apps said which are gone; each node's are one finding."""
    apps = survey.ids(APPS)
    for entry, node in survey.decoded("nodes", Node):
        gone = {field: of for field, of in node.parts.items() if of.partition("/")[2] not in apps}
        if not gone:
            continue
        name, key = survey.keys.last_part(entry.key), survey.short(entry.key)
        kept = {field: of for field, of in node.parts.items() if field not in gone}
        value = codec.rewrite(replace(node, parts=kept), entry.value)
        yield Finding(
            "part-of-nobody",
            key,
            f"{', '.join(sorted(gone))} of {title('nodes', name)} is managed by"
            f" {', '.join(sorted(set(gone.values())))}, which does not exist",
            f"farmctl doctor --fix {key} releases it as it is",
            Removal("nodes", name, (), frees=((entry.key, entry.modify_index, value),)),
        )


def _trackers(survey: Survey) -> Iterator[Finding]:
    """Revisions of apps that are gone."""
    apps, tree = survey.ids(APPS), survey.keys.tree(TRACKERS)
    for entry in survey.well_formed(TRACKERS):
        app = entry.key[len(tree) :].partition("/")[0]
        if app not in apps:
            key, whole = survey.short(entry.key), survey.keys.record(APPS, app)
            yield Finding(
                "stale-tracker",
                key,
                f"a revision of {title(APPS, app)}, which does not exist",
                f"farmctl doctor --fix {key} removes it",
                Removal(TRACKERS, app, ((entry.key, entry.modify_index),), absent=(whole,)),
            )


def _volumes(survey: Survey) -> Iterator[Finding]:
    """Volumes that were made for services which are gone; each node's are one finding."""
    known = {text for _, service in survey.decoded(SERVICES, Service) for text in (service.id, service.name)}
    known |= survey.ids(SERVICES)
    for entry, node in survey.decoded("nodes", Node):
        gone = {name for name, volume in node.volumes.items() if volume.service not in {"", *known}}
        if not gone:
            continue
        freed = {
            name: replace(volume, service="") if name in gone else volume
            for name, volume in node.volumes.items()
        }
        value = codec.rewrite(replace(node, volumes=freed), entry.value)
        yield Finding(
            "volume-of-nobody",
            survey.short(entry.key),
            f"the services that {', '.join(sorted(gone))} were made for do not exist; the data is kept",
            f"farmctl volume delete NAME --node {survey.keys.last_part(entry.key)} if they are not needed, or"
            f" farmctl doctor --fix {survey.short(entry.key)} keeps them without an owner",
            Removal(
                "nodes",
                survey.keys.last_part(entry.key),
                (),
                frees=((entry.key, entry.modify_index, value),),
            ),
        )


def _names(survey: Survey) -> Iterator[Finding]:
    """Names of volumes that no node has. No volume of such a name can be created."""
    nodes = dict(survey.decoded("nodes", Node))
    if len(nodes) < sum(1 for _ in survey.well_formed("nodes")):
        return  # one that does not decode may have it
    there = {name for node in nodes.values() for name in node.volumes}
    tree = f"{survey.keys.tree('names')}{VOLUMES}/"
    for entry in survey.well_formed("names"):
        name = entry.key.removeprefix(tree)
        if entry.key.startswith(tree) and name not in there:
            yield Finding(
                "stale-name",
                survey.short(entry.key),
                f"no node has a volume {name!r}, but its name is still registered, so none can be created",
                f"farmctl doctor --fix {survey.short(entry.key)} removes it",
                Removal(VOLUMES, name, ((entry.key, entry.modify_index),)),
            )
