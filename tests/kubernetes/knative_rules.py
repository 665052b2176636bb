"""What Knative's controllers decide, as pure functions on objects as the API server has them (dicts).

Read in the source of Knative Serving. Up to 1.20 the annotations of a revision reach its pods, and those of
its autoscaler are left alone; since 1.21 those below ``autoscaling.knative.dev/`` reach the autoscaler and
nothing else. Any other label or annotation of a revision changes its pods' template, and so restarts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from farmd.kubernetes.knative.objects import AUTOSCALERS, CONFIGURATIONS, GROUP, REVISIONS, ROUTES, SERVICES
from farmd.kubernetes.objects import CRDS

SCALING = "autoscaling.knative.dev"
KINDS = (SERVICES, CONFIGURATIONS, ROUTES, REVISIONS, AUTOSCALERS)
STATE = f"{GROUP}/routingState"
_ROUTING = frozenset({STATE, f"{GROUP}/routes", f"{GROUP}/routingStateModified"})
_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_ENTRY = {
    "revisionName": {"type": "string"},
    "configurationName": {"type": "string"},
    "latestRevision": {"type": "boolean"},
    "percent": {"type": "integer", "format": "int64"},
    "tag": {"type": "string"},
    "url": {"type": "string"},
}
# What Knative's webhook refuses.
_REFUSED = (
    ("!has(e.configurationName)", "configurationName is refused"),
    (
        "(has(e.revisionName) && e.revisionName != '') != (has(e.latestRevision) && e.latestRevision)",
        "one of both",
    ),
)


def definitions(version: str) -> Iterable[dict[str, Any]]:
    """The definitions of Knative's kinds; ``version`` is their label, empty for none."""
    for kind in KINDS:
        meta = {"name": str(kind), "labels": {"app.kubernetes.io/version": version} if version else {}}
        properties: dict[str, Any] = {"spec": _OPEN, "status": _OPEN}
        if kind == SERVICES:
            properties["spec"] = _service_spec()
        schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
        served = {"name": kind.version, "served": True, "storage": True, "subresources": {"status": {}}}
        names = {"kind": kind.kind, "plural": kind.plural}
        spec = {"group": kind.group, "scope": "Namespaced", "names": names}
        yield {
            "apiVersion": CRDS.api_version,
            "kind": CRDS.kind,
            "metadata": meta,
            "spec": spec | {"versions": [served | {"schema": schema}]},
        }


def _service_spec() -> dict[str, Any]:
    rules = [{"rule": f"self.all(e, {rule})", "message": text} for rule, text in _REFUSED]
    whole = "size(self) == 0 || self.map(e, has(e.percent) ? e.percent : 0).sum() == 100"
    rules.append({"rule": whole, "message": "Traffic targets sum to another number than 100"})
    entry = {"type": "object", "properties": _ENTRY}
    traffic = {"type": "array", "maxItems": 50, "items": entry, "x-kubernetes-validations": rules}
    return {"type": "object", "properties": {"template": _OPEN, "traffic": traffic}}


def minor(version: str) -> int:
    """The second number of a version; that of a development version is new."""
    parts = version.removeprefix("v").split(".")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 1000


def new_revision_name(configuration: Mapping[str, Any]) -> str:
    """The name of the revision that a configuration's generation becomes."""
    meta = configuration["metadata"]
    own: str = configuration["spec"]["template"].get("metadata", {}).get("name", "")
    return own or f"{meta['name']}-{meta['generation']:05d}"


def scaling(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations that are the autoscaler's."""
    return {name: value for name, value in annotations.items() if name.startswith(f"{SCALING}/")}


def template_of(meta: Mapping[str, Any], version: str) -> frozenset[tuple[str, str]]:
    """What of a revision's metadata is part of its pods' template: when it changes, they restart."""
    labels, annotations = dict(meta.get("labels") or {}), dict(meta.get("annotations") or {})
    if minor(version) >= 21:
        annotations = {name: each for name, each in annotations.items() if name not in scaling(annotations)}
    return frozenset(each for each in (labels | annotations).items() if each[0] not in _ROUTING)


def bounds(annotations: Mapping[str, str], *, reachable: bool) -> tuple[int, int]:
    """The least and the most pods by an autoscaler's annotations; a most of 0 is no bound."""

    def read(*names: str) -> int:
        return next(
            (int(annotations[f"{SCALING}/{name}"]) for name in names if f"{SCALING}/{name}" in annotations), 0
        )

    return (read("min-scale", "minScale") if reachable else 0), read("max-scale", "maxScale")


def never_empty(annotations: Mapping[str, str]) -> bool:
    """Whether an autoscaler is of the class HPA, which keeps one pod at least, reached or not."""
    return annotations.get(f"{SCALING}/class", "").startswith("hpa.")


def desired(load: float, least: int, most: int, *, kept: bool) -> int:
    """How many pods an autoscaler wants; ``kept``: one at least, as of a revision that was never ready."""
    wanted = max(math.ceil(load), least, int(kept))
    return min(wanted, most) if most else wanted


def assigned(
    spec: Iterable[Mapping[str, Any]], ready: Iterable[str], latest_ready: str
) -> list[dict[str, Any]] | None:
    """The traffic of a route; None: one of its revisions is not ready, and the old traffic stays."""
    found = []
    for entry in spec:
        latest = not entry.get("revisionName")
        name = latest_ready if latest else entry["revisionName"]
        if name not in ready:
            return None
        kept = {field: entry[field] for field in ("percent", "tag") if field in entry}
        found.append({"revisionName": name, "latestRevision": latest} | kept)
    return found


def routed(route: Mapping[str, Any], latest_created: str) -> set[str]:
    """The revisions that a route makes reachable, by what it is to do and by what it does."""
    entries = [*route["spec"].get("traffic", ()), *route.get("status", {}).get("traffic", ())]
    names = {entry.get("revisionName", "") for entry in entries}
    return names | {latest_created for entry in entries if entry.get("configurationName")} - {""}
