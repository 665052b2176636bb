"""Objects in a bundle, and how an app treats each: its order, its scopes, its marks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

import msgspec

from store import codec
from store.apps import Entry, TypedReference
from store.errors import InputInvalid, refuse
from store.mistakes import nearest, shown

# Documents of Kubernetes as JSON has them: YAML allows more, and the API server takes only JSON.
#
# As for kubectl, a name that is a number or a truth value is its text. What must never break: a document
# that is recorded is the one that is sent.


def as_json(value: Any, where: str, path: str = "") -> Any:
    """A value of a file with text for its names; ``path`` is where in the document it stands.

    Raises:
        InputInvalid: what JSON has not, naming the place and the field.
    """
    if isinstance(value, Mapping):
        return {
            (text := _name(name, where, path)): as_json(each, where, f"{path}.{text}" if path else text)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [as_json(each, where, f"{path}[{at}]") for at, each in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        refuse(f"{where}: {path}", str(value), "a value of JSON", field=path)
    if value is not None and not isinstance(value, str | int | float):
        refuse(f"{where}: {path}", shown(value), "a value of JSON", field=path)
    return value


def _name(name: Any, where: str, path: str) -> str:
    if not isinstance(name, str | int | float):
        refuse(f"{where}: {path}", f"the key {shown(name)}", "text", field=path)
    return str(name).lower() if isinstance(name, bool) else str(name)


# The scopes of KubeVela that an object says it is in, such as a HealthScope, which lists its workloads.
#
# The annotation stays on the object, so what it was in before is known from the object itself.

SCOPES = "farmd.io/scopes"


def scopes_in(found: Mapping[str, Any]) -> list[TypedReference]:
    """The scopes that an object as it stands is in, as far as its annotation has the form of one."""
    try:
        return scopes_of(found)
    except InputInvalid:
        return []


def scopes_of(document: Mapping[str, Any]) -> list[TypedReference]:
    """The scopes that a document names, which are in its namespace.

    Raises:
        InputInvalid: one has another form than ``<apiVersion>/<kind>/<name>``.
    """
    metadata = document["metadata"]
    text = (metadata.get("annotations") or {}).get(SCOPES, "")
    names = [part.strip() for part in text.split(",") if part.strip()]
    return [_scope(name, metadata.get("namespace") or "") for name in dict.fromkeys(names)]


def _scope(text: str, namespace: str) -> TypedReference:
    parts = text.split("/")
    if len(parts) < 3 or not all(parts):
        expected = "such as core.oam.dev/v1beta1/HealthScope/health"
        raise InputInvalid(
            f"metadata.annotations.{SCOPES}: found {shown(text)}, expected {expected}", field=SCOPES
        )
    *api, kind, name = parts
    return TypedReference(api_version="/".join(api), kind=kind, namespace=namespace, name=name)


# How an app treats one of its objects, and the order that this gives: waves, and what comes after what.

WAVES = range(-100, 101)


class Treatment(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """``wave``: objects of a wave wait until those before are ready. ``after``: objects to wait for.

    ``on_remove: keep``: the object stays when it leaves the files. ``apply: once``: it is made, and never
    touched again in its revision. ``ignore``: fields whose value counts for the creation alone. ``replace``:
    if the object cannot take a change, it is deleted and created again.
    """

    wave: int = 0
    after: list[str] = []
    on_remove: Literal["delete", "keep"] = "delete"
    apply: Literal["always", "once"] = "always"
    ignore: list[str] = []
    replace: bool = False


def checked(treatment: Treatment, where: str, prefix: str) -> dict[str, Any]:
    """The fields of an entry that a treatment gives; ``prefix`` stands before their names in messages.

    Raises:
        InputInvalid: a wave out of range.
    """
    if treatment.wave not in WAVES:
        expected = f"a whole number from {WAVES.start} to {WAVES.stop - 1}"
        refuse(f"{where}: {prefix}wave", str(treatment.wave), expected, field=f"{prefix}wave")
    return {name: getattr(treatment, name) for name in Treatment.__struct_fields__}


def check_order(entries: Sequence[Entry], places: Mapping[str, str]) -> None:
    """Check that each object comes after objects of the bundle, none of a later wave, and not in a circle.

    Raises:
        InputInvalid: naming the place and the object, or the circle.
    """
    found = {str(entry.ref): entry for entry in entries}
    for name, entry in found.items():
        where = f"{places[name]}: {name}: after"
        for other in entry.after:
            if other not in found:
                known = nearest(other, sorted(found), "an object of this bundle")
                raise InputInvalid(f"{where}: found {other!r}{known}", field="after")
            if found[other].wave > entry.wave:
                expected = f"an object of wave {entry.wave} or earlier"
                refuse(where, f"{other}, which is in wave {found[other].wave}", expected, field="after")
    try:
        TopologicalSorter({name: entry.after for name, entry in found.items()}).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        where = places[circle[0]]
        raise InputInvalid(
            f"{where}: after: found the circle {' -> '.join(circle)}", field="after"
        ) from error


# Kubernetes objects in a bundle, as kubectl, kustomize and ``helm template`` print them.
#
# Annotations ``farmd.io/…`` say how the app treats an object; those of Helm, Argo CD and KubeVela mean what
# they mean there. What a server wrote into an object, such as its status, is left out, because no person
# said it.

OURS = "farmd.io/"
HELM_KEEP = "helm.sh/resource-policy"
ARGO_WAVE = "argocd.argoproj.io/sync-wave"
ARGO_OPTIONS = "argocd.argoproj.io/sync-options"
SKIP_GC = "app.oam.dev/skipGC"
_HOOKS = {
    "helm.sh/hook": "none: render it with helm template --no-hooks",
    "argocd.argoproj.io/hook": "none: hooks belong to Argo CD",
}
_ANNOTATIONS = {"farmd.io/" + name.replace("_", "-"): name for name in Treatment.__struct_fields__}
# What a server writes into the metadata of an object.
_SERVERS = frozenset(
    {
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "managedFields",
        "selfLink",
        "deletionTimestamp",
    }
)
_WORDS = {"true": True, "false": False}
# What tells an object from others, which no field of it can be ignored in.
_IDENTITY = ("apiVersion", "kind", "metadata", "metadata.name", "metadata.namespace")
CRD = ("apiextensions.k8s.io", "CustomResourceDefinition")
# Kinds whose loss takes other objects or data along: they stay unless the file says otherwise.
_KEPT = {("", "Namespace"), ("", "PersistentVolumeClaim"), CRD}
# Kinds of Kubernetes itself whose objects have no namespace.
_CLUSTER_SCOPED = {
    *(("", kind) for kind in ("Namespace", "Node", "PersistentVolume")),
    *(("rbac.authorization.k8s.io", kind) for kind in ("ClusterRole", "ClusterRoleBinding")),
    *(("storage.k8s.io", kind) for kind in ("StorageClass", "CSIDriver", "CSINode", "VolumeAttachment")),
    *(
        ("admissionregistration.k8s.io", kind)
        for kind in (
            "ValidatingWebhookConfiguration",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        )
    ),
    *(("flowcontrol.apiserver.k8s.io", kind) for kind in ("FlowSchema", "PriorityLevelConfiguration")),
    ("scheduling.k8s.io", "PriorityClass"),
    ("networking.k8s.io", "IngressClass"),
    ("node.k8s.io", "RuntimeClass"),
    ("apiregistration.k8s.io", "APIService"),
    ("certificates.k8s.io", "CertificateSigningRequest"),
    CRD,
}


def group_of(api_version: str) -> str:
    """The group of an apiVersion; empty for the first API."""
    return api_version.rpartition("/")[0]


def defined(documents: Iterable[dict[str, Any]]) -> dict[tuple[str, str], bool]:
    """Of the kinds that these documents define: whether their objects have a namespace."""
    found = {}
    for each in documents:
        if (group_of(each["apiVersion"]), each["kind"]) != CRD:
            continue
        spec = each.get("spec")
        names = spec.get("names") if isinstance(spec, dict) else None
        if isinstance(spec, dict) and isinstance(names, dict):
            found[(str(spec.get("group")), str(names.get("kind")))] = spec.get("scope") == "Namespaced"
    return found


def parse(
    data: dict[str, Any],
    where: str,
    *,
    namespace: str,
    scopes: Mapping[tuple[str, str], bool],
    secrets: bool,
) -> Entry:
    """The entry of one object; ``namespace`` is that of objects that name none.

    Raises:
        InputInvalid: naming the place, the field, what was found and what was expected.
    """
    _refuse_foreign(data, where, secrets=secrets)
    data = as_json(data, where)
    metadata = _mapping(data.get("metadata"), f"{where}: metadata")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        found = "generateName" if metadata.get("generateName") else shown(name)
        refuse(f"{where}: metadata.name", found, "a fixed name", field="metadata.name")
    _segment(name, where, "metadata.name")
    labels, annotations = _labels(metadata, where), _annotations(metadata, where)
    for key, expected in _HOOKS.items():
        if key in annotations:
            refuse(f"{where}: metadata.annotations.{key}", shown(annotations[key]), expected, field=key)
    identity = (group_of(data["apiVersion"]), data["kind"])
    ref = TypedReference(
        api_version=data["apiVersion"],
        kind=data["kind"],
        namespace=_namespace(metadata, identity, namespace, scopes, where),
        name=name,
    )
    left = {key: value for key, value in annotations.items() if key not in _ANNOTATIONS}
    document = _stated(data, metadata, labels, left, ref.namespace)
    try:
        scopes_of(document)
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", **error.fields) from error
    said = {key: value for key, value in annotations.items() if key in _ANNOTATIONS}
    treatment = _said(said, _implied(left, identity, document.get("spec"), where), where)
    _check_ignored(treatment.ignore, where)
    return Entry(ref=ref, document=document, **checked(treatment, where, OURS))


def render(entry: Entry) -> dict[str, Any]:
    """An entry as the object that a person would write; an annotation only where it says something new."""
    document = entry.document or {}
    metadata = document["metadata"]
    annotations = metadata.get("annotations", {})
    identity = (group_of(entry.ref.api_version), entry.ref.kind)
    implied = _implied(annotations, identity, document.get("spec"), "")
    said = {}
    for key, name in _ANNOTATIONS.items():
        if (value := getattr(entry, name)) != getattr(implied, name):
            said[key] = _text(value)
    if not said:
        return document
    return {**document, "metadata": {**metadata, "annotations": {**annotations, **said}}}


def _text(value: Any) -> str:
    """A value of a treatment as an annotation says it."""
    return ",".join(value) if isinstance(value, list) else str(value).lower()


def _refuse_foreign(data: dict[str, Any], where: str, *, secrets: bool) -> None:
    group = group_of(data["apiVersion"])
    if group.endswith("kustomize.config.k8s.io") or data["kind"] == "Kustomization":
        refuse(f"{where}: kind", "a kustomization", "the output of kustomize build", field="kind")
    if (group, data["kind"]) == ("", "Secret") and not secrets:
        expected = (
            "none, or allow_secrets: true in the app's document: trackers in Consul must not hold secrets"
        )
        refuse(f"{where}: kind", "a Secret", expected, field="kind")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse(where, shown(value), "a mapping")
    return value


def _segment(name: str, where: str, field: str) -> None:
    """Refuse a name that would be more or less than one part of a path, as the API server does."""
    if name in (".", "..") or {"/", "%"} & set(name):
        refuse(f"{where}: {field}", shown(name), "a name without / and %", field=field)


def _texts(metadata: dict[str, Any], field: str, where: str) -> dict[str, str]:
    """The labels or the annotations of an object."""
    found = _mapping(metadata.get(field) or {}, f"{where}: metadata.{field}")
    for key, value in found.items():
        if not isinstance(value, str):
            refuse(f"{where}: metadata.{field}.{key}", shown(value), "text", field=key)
    return found


def _labels(metadata: dict[str, Any], where: str) -> dict[str, str]:
    found = _texts(metadata, "labels", where)
    for key, value in found.items():
        if key.startswith(OURS):
            refuse(f"{where}: metadata.labels.{key}", shown(value), "none: farmd writes it", field=key)
    return found


def _annotations(metadata: dict[str, Any], where: str) -> dict[str, str]:
    found = _texts(metadata, "annotations", where)
    for key in found:
        if key.startswith(OURS) and key not in (*_ANNOTATIONS, SCOPES):
            near = nearest(key, sorted((*_ANNOTATIONS, SCOPES)))
            text = f"{where}: metadata.annotations.{key}: no such annotation{near}"
            raise InputInvalid(text, field=key)
    return found


def _check_ignored(paths: Iterable[str], where: str) -> None:
    """Refuse to ignore what no path of names leads to, or what tells one object from another."""
    key = f"{OURS}ignore"
    for path in paths:
        if path in _IDENTITY or "[" in path or not all(path.split(".")):
            expected = "the path of a field, such as spec.replicas, but not of a list item"
            refuse(f"{where}: metadata.annotations.{key}", shown(path), expected, field=key)


def _namespace(
    metadata: dict[str, Any],
    identity: tuple[str, str],
    default: str,
    scopes: Mapping[tuple[str, str], bool],
    where: str,
) -> str:
    given = metadata.get("namespace") or ""
    if not isinstance(given, str):
        refuse(f"{where}: metadata.namespace", shown(given), "text", field="metadata.namespace")
    if not scopes.get(identity, identity not in _CLUSTER_SCOPED):
        return ""
    if not (given or default):
        expected = "one, or -n NAMESPACE, or namespace: in the app's document"
        refuse(f"{where}: metadata.namespace", "none", expected, field="metadata.namespace")
    _segment(given or default, where, "metadata.namespace")
    return given or default


def _stated(
    data: dict[str, Any],
    metadata: dict[str, Any],
    labels: dict[str, str],
    annotations: dict[str, str],
    namespace: str,
) -> dict[str, Any]:
    """The object without what a server wrote into it, and with its namespace."""
    told = {*_SERVERS, "labels", "annotations", "namespace"}
    kept = {key: value for key, value in metadata.items() if key not in told}
    kept |= {"labels": labels} if labels else {}
    kept |= {"namespace": namespace} if namespace else {}
    kept |= {"annotations": annotations} if annotations else {}
    return {**{key: value for key, value in data.items() if key != "status"}, "metadata": kept}


def _implied(annotations: Mapping[str, str], identity: tuple[str, str], spec: Any, where: str) -> Treatment:
    """What an object's kind, the end that it sets itself, and the annotations of other tools say."""
    wave = _number(annotations.get(ARGO_WAVE, "0"), ARGO_WAVE, where)
    options = {option.strip() for option in annotations.get(ARGO_OPTIONS, "").split(",")}
    kept = (
        identity in _KEPT
        or annotations.get(HELM_KEEP) == "keep"
        or "Prune=false" in options
        or SKIP_GC in annotations
    )
    return Treatment(
        wave=wave,
        on_remove="keep" if kept else "delete",
        apply="once" if _goes_by_itself(spec) else "always",
    )


def _goes_by_itself(spec: Any) -> bool:
    """Whether it is a job that is deleted some time after its end: made again, it would run again."""
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    places = (place for place in (spec, policy) if isinstance(place, Mapping))
    return any(place.get("ttlSecondsAfterFinished") is not None for place in places)


def _number(text: str, key: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        refuse(f"{where}: metadata.annotations.{key}", shown(text), "a whole number", field=key)


def _said(annotations: dict[str, str], implied: Treatment, where: str) -> Treatment:
    """What annotations of ours say, over what is implied."""
    values: dict[str, Any] = msgspec.structs.asdict(implied)
    for key, text in annotations.items():
        name = _ANNOTATIONS[key]
        if isinstance(values[name], list):
            values[name] = [part.strip() for part in text.split(",") if part.strip()]
        else:
            values[name] = _WORDS.get(text, text) if isinstance(values[name], bool) else text
            if name == "wave":
                values[name] = _number(text, key, where)
    try:
        return codec.parse_input(Treatment, values, "")
    except InputInvalid as error:
        key = OURS + error.fields["field"].replace("_", "-")
        rest = error.message.partition(": ")[2]
        raise InputInvalid(f"{where}: metadata.annotations.{key}: {rest}", field=key) from error
