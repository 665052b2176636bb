"""The mark of an app on a Kubernetes object, and the marks of other tools.

The mark is written with the object itself: a label with the app's name, and an annotation with the cluster's
id, the app and the number of the target that applied it. What must never break: an object with another
tool's mark, or with that of another cluster's farms, is never taken for nobody's.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from store.apps import KIND

# Compares an object with its document, in the fields that the document states: pure.
#
# A server writes defaults into what it stores and may write an amount in another way, so a difference that
# is found here is asked of the server once more, by a dry run; none that is not found here is one.

_IDENTITY = frozenset({"apiVersion", "kind"})
_SERVERS = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")
_EMPTY: tuple[Any, ...] = (None, {}, [], "")
_LONGEST_VALUE = 60
_SECRET = ("data", "stringData")


def differing(document: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The paths of stated fields that are otherwise: ``spec.replicas``, ``spec.containers[0].image``."""
    return [path for path, _, _ in _differences(document, found)]


def values(document: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The same paths with the live and the stated values, for people; never the content of a Secret."""
    secret = (document.get("apiVersion"), document.get("kind")) == ("v1", "Secret")
    return [
        f"{path}: hidden, because it is a Secret's"
        if secret and path.partition(".")[0] in _SECRET
        else f"{path}: {_shown(before)} -> {_shown(said)}"
        for path, said, before in _differences(document, found)
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _differences(document: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    said = {name: value for name, value in document.items() if name not in _IDENTITY}
    return _within(said, found, "")


def _within(said: Any, found: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if said in _EMPTY and found in _EMPTY:
        return
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for name, value in said.items():
            yield from _within(value, found.get(name), f"{path}.{name}" if path else name)
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for at, (one, other) in enumerate(zip(said, found, strict=True)):
            yield from _within(one, other, f"{path}[{at}]")
    elif said != found:
        yield path, said, found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether an object is another one after an apply, apart from what every write changes."""
    return _core(before) != _core(after)


def _core(found: Mapping[str, Any]) -> dict[str, Any]:
    meta = {name: value for name, value in found["metadata"].items() if name not in _SERVERS}
    return {**found, "metadata": meta}


def without(document: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """A document that does not speak of some fields."""
    found = _changeable(document, paths)
    for path in paths:
        *folders, last = path.split(".")
        place = _place(found, folders)
        if place is not None:
            place.pop(last, None)
    return found


def with_live(document: Mapping[str, Any], live: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """A document with the live values of some fields: a field that an apply leaves out is deleted."""
    found = _changeable(document, paths)
    for path in paths:
        *folders, last = path.split(".")
        said, there = _place(found, folders), _place(live, folders)
        if said is not None and there is not None and last in there:
            said[last] = there[last]
        elif said is not None:
            said.pop(last, None)
    return found


def _changeable(document: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """A copy of a document in which these fields can be changed."""
    return copy.deepcopy(dict(document)) if paths else dict(document)


def _place(found: Any, folders: list[str]) -> dict[str, Any] | None:
    for name in folders:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, dict) else None


def writer(found: Mapping[str, Any], ours: str) -> str:
    """The manager that wrote the object last, other than this one; empty: none is known."""
    others = [each for each in found["metadata"].get("managedFields") or () if each["manager"] != ours]
    last = max(others, key=lambda each: each.get("time") or "", default=None)
    return "" if last is None else str(last["manager"])


LABEL = "farmd.io/app"
APPLIED = "farmd.io/applied"
MANAGER = "farmd"

_ANNOTATIONS = {
    "meta.helm.sh/release-name": "Helm's release {value}",
    "argocd.argoproj.io/tracking-id": "Argo CD ({value})",
}
_LABELS = {
    "kustomize.toolkit.fluxcd.io/name": "Flux's kustomization {value}",
    "helm.toolkit.fluxcd.io/name": "Flux's release {value}",
    "kapp.k14s.io/app": "kapp ({value})",
    "app.oam.dev/name": "KubeVela's application {value}",
    "applyset.kubernetes.io/part-of": "kubectl's ApplySet {value}",
}


# Numbers of targets are recorded as whole numbers of 64 bits.
_DIGITS = 18


class OwnerMark(NamedTuple):
    """The owner of an object: the cluster's id, the app, and the number of the target that applied it
    last.
    """

    cluster: str
    app: str
    seq: int

    def __str__(self) -> str:
        """As an object's annotation says it; ``mark_in`` reads it."""
        return f"{self.cluster}/{self.app}/{self.seq}"


def marked(document: Mapping[str, Any], mark: OwnerMark) -> dict[str, Any]:
    """A document with a mark."""
    meta = document["metadata"]
    labels = {**(meta.get("labels") or {}), LABEL: mark.app}
    annotations = {**(meta.get("annotations") or {}), APPLIED: str(mark)}
    return {**document, "metadata": {**meta, "labels": labels, "annotations": annotations}}


def mark_of(found: Mapping[str, Any]) -> OwnerMark | None:
    """The mark that an object bears; None: none that can be read."""
    return mark_in(_texts(found, "annotations"))


def mark_in(annotations: Mapping[str, str]) -> OwnerMark | None:
    """The mark in an object's annotations; None: none that can be read."""
    text = annotations.get(APPLIED, "")
    cluster, _, rest = text.partition("/")
    app, _, seq = rest.partition("/")
    counts = seq.isdecimal() and len(seq) <= _DIGITS
    return OwnerMark(cluster, app, int(seq)) if cluster and app and counts else None


def owner(found: Mapping[str, Any], cluster: str) -> str:
    """The owner of an object: ``apps/<name>``; empty: nobody; otherwise its other owner, in words."""
    mark = mark_of(found)
    if mark is not None and mark.cluster == cluster:
        return f"{KIND}/{mark.app}"
    if mark is not None:
        return f"app {mark.app} of another cluster of farmd ({mark.cluster[:8]})"
    for marks, field in ((_ANNOTATIONS, "annotations"), (_LABELS, "labels")):
        texts = _texts(found, field)
        for name, told in marks.items():
            if name in texts:
                return told.format(value=texts[name])
    return ""


def _texts(found: Mapping[str, Any], field: str) -> Mapping[str, str]:
    texts: Mapping[str, str] = found["metadata"].get(field) or {}
    return texts
