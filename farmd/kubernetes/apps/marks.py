"""The mark of an app on a Kubernetes object, and the marks of other tools.

The mark is written with the object itself: a label with the app's name, and an annotation with the cluster's
id, the app and the number of the target that applied it. What must never break: an object with another
tool's mark, or with that of another cluster's farms, is never taken for nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from store.apps import KIND

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
    """Whose an object is: the cluster's id, the app, and the number of the target that applied it last."""

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
    """Whose an object is: ``apps/<name>``, empty for nobody's, or who else has it, in words."""
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
