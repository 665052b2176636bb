"""Files with jobs for Kubernetes: each document is checked here before the API server sees it.

Each refusal is one line that names the file and the field, what was found and what was expected. What only
the API server's schema knows, the server says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from farmd.jobs import parameters
from farmd.jobs.resources import resource
from farmd.jobs.resources.cluster_env import containers, environment, first
from farmd.jobs.resources.kindfile import KindFile, kinds
from store import mistakes
from store.errors import InputInvalid, refuse
from store.mistakes import nearest, shown

_TOP = ("apiVersion", "kind", "metadata", "spec")
# What the API server writes, and an exported object has.
_OF_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_VARIABLE = re.compile(r"\$[({]?(FARMD_[A-Z_]+)")
_TEXT = frozenset(
    {"name", "namespace", "value", "annotations", "nodeSelector", "matchLabels", "image", "workingDir"}
)


@dataclass(frozen=True, slots=True)
class Document:
    """One job of a file: its kind, the object as the API server gets it, and where it stands."""

    kind: KindFile
    body: Mapping[str, Any]
    source: str
    namespace: str

    @property
    def job(self) -> str:
        """Its name alone."""
        return str(self.body["metadata"]["name"])

    @property
    def name(self) -> str:
        """As people write it: ``ml/bert``."""
        return f"{self.namespace}/{self.job}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """What is asked."""
        found: Mapping[str, Any] = self.body["spec"]
        return found

    def read(self) -> resource.Resource:
        """The job as farms read it."""
        return resource.read(self.kind, self.body)

    def within(self, namespace: str) -> Document:
        """The same job; in this namespace, if it names none."""
        own = self.namespace or namespace
        meta = {**self.body["metadata"], "namespace": own}
        return replace(self, namespace=own, body={**self.body, "metadata": meta})

    def renamed(self, name: str) -> Document:
        """The same job under another name.

        Raises:
            InputInvalid: no job can have it.
        """
        body = {**self.body, "metadata": {**self.body["metadata"], "name": name}}
        return _checked(replace(self, body=body))


def parse(data: Mapping[str, Any], source: str, given: Mapping[str, str], namespace: str = "") -> Document:
    """One document; ``given`` are values of its parameters, ``namespace`` is that which a person named.

    Raises:
        InputInvalid: it is no job that the API server could take.
    """
    kind = _kind(data, source)
    filled = parameters.filled(data, given, source, _TEXT)
    for name in filled:
        if name not in (*_TOP, "status"):
            raise InputInvalid(f"{source}: {name}: unknown key{nearest(name, list(_TOP))}", field=name)
    for name in ("metadata", "spec"):
        if not isinstance(filled.get(name), dict):
            refuse(f"{source}: {name}", shown(filled.get(name)), "a mapping")
    meta = {name: text for name, text in filled["metadata"].items() if name not in _OF_THE_SERVER}
    own = meta.get("namespace") or namespace
    if namespace and own != namespace:
        refuse(f"{source}: metadata.namespace", repr(own), f"{namespace!r}, because --namespace says so")
    body = {**filled, "metadata": meta}
    body.pop("status", None)
    return _checked(Document(kind, body, source, own))


def _kind(data: Mapping[str, Any], source: str) -> KindFile:
    by_name = {each.kind: each for each in kinds().values()}
    found = data.get("kind")
    if not isinstance(found, str):
        refuse(f"{source}: kind", shown(found), f"one of {', '.join(by_name)}", field="kind")
    if found not in by_name:
        raise InputInvalid(f"{source}: kind: found {found!r}{nearest(found, list(by_name))}", field="kind")
    kind = by_name[found]
    if data.get("apiVersion") != (expected := f"{kind.group}/{kind.version}"):
        refuse(f"{source}: apiVersion", shown(data.get("apiVersion")), f"{expected!r} for a {kind.kind}")
    return kind


def _checked(document: Document) -> Document:
    """The document, if it can be a job of its kind.

    Raises:
        InputInvalid: naming the file, the field, what was found and what was expected.
    """
    kind, source, meta = document.kind, document.source, document.body["metadata"]
    name = meta.get("name")
    if not (isinstance(name, str) and len(name) <= 63 and _NAME.fullmatch(name)):
        refuse(f"{source}: metadata.name", shown(name), "1 to 63 of a-z, 0-9 and '-', not at the ends")
    if kind.closed:
        _refuse_unknown(document)
    gang = bool((_policy(document) or {}).get("schedulingPolicy"))
    try:
        found = resource.read(kind, document.body, gangs=gang)
    except InputInvalid as error:
        raise InputInvalid(f"{source}: {error.message}", field=str(error.fields.get("field", ""))) from error
    known = environment(found, first(found), 0)
    for field, text, own in _texts(document, found):
        for use in _VARIABLE.finditer(text):
            if use[1] not in known.keys() | own:
                names = [each for each in known if each.startswith("FARMD_")]
                expected = f"one of {', '.join(names)}" if names else f"none: a {kind.kind} has no such"
                refuse(f"{source}: {field}", repr(use[1]), expected, field=field)
    return document


def _policy(document: Document) -> Mapping[str, Any] | None:
    found = document.spec.get("runPolicy")
    return found if isinstance(found, Mapping) else None


def _refuse_unknown(document: Document) -> None:
    """Refuse a field that a kind of farmd's own does not have."""
    types = document.kind.replica_specs
    common = {name: each for name, each in document.spec.items() if name != types}
    specs = {types: document.spec.get(types, {})}
    for model, data, field in (
        (resource.Common, common, "spec"),
        (dict[str, dict[str, resource.ReplicaSpec]], specs, "spec"),
    ):
        found = mistakes.first(model, data)
        if found is not None and "unknown key" in found[1]:
            raise InputInvalid(f"{document.source}: {field}.{found[0]}: {found[1]}", field=found[0])


def _texts(document: Document, of: resource.Resource) -> Iterator[tuple[str, str, set[str]]]:
    """All text of environments, commands and arguments, with its field and its container's own variables."""
    for name in document.spec[document.kind.replica_specs]:
        own = of.templates.get(of.kind.canonical(name), {})
        for place, each in enumerate(containers(own)):
            field = f"spec.{document.kind.replica_specs}.{name}.template.spec.containers[{place}]"
            env = [one for one in each.get("env") or [] if isinstance(one, Mapping)]
            named = {str(one.get("name")) for one in env}
            for at, one in enumerate(env):
                if isinstance(one.get("value"), str):
                    yield f"{field}.env[{at}].value", one["value"], named
            for part in ("command", "args"):
                for at, text in enumerate(each.get(part) or []):
                    if isinstance(text, str):
                        yield f"{field}.{part}[{at}]", text, named
