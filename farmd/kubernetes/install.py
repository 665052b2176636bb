"""Puts what farmd needs into a cluster: the definitions of its own resources, and the rights of farms.

Server-side apply under one manager's name: a second run changes nothing, and fields of others stay. A
definition that another installation brought is left as it is. Nothing is removed while objects of it exist,
because the API server would delete them all with their definition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from farmd.kubernetes.client import APPLY_PATCH, applying
from farmd.kubernetes.contact import lacking
from farmd.kubernetes.errors import NotFound
from farmd.kubernetes.objects import CRDS, Resource
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from store.errors import Conflict, refuse
from store.ports import Clock
from store.words import listed

# The rights of farms in a cluster: the shipped roles, for all namespaces or for some, and who bears them.

RIGHTS_GROUP = "rbac.authorization.k8s.io"
VERSION = f"{RIGHTS_GROUP}/v1"
DEFAULT_SUBJECT = "user/farmd"
IDENTITY_ROLE, IDENTITY_NAMESPACE = "farmd-identity", "kube-system"
_KINDS = {"user": "User", "group": "Group", "serviceaccount": "ServiceAccount"}


@dataclass(frozen=True, slots=True)
class Rights:
    """Where farms may work (no namespaces: in all), and the ``subject`` that bears the rights, as
    ``user/NAME``, ``group/NAME`` or ``serviceaccount/NAMESPACE/NAME``; empty: the roles are bound by hand.
    """

    namespaces: Sequence[str] = ()
    subject: str = ""

    def of(self, role: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A shipped ClusterRole as it is, or as a Role in each namespace; and its bindings.

        Raises:
            InputInvalid: the subject is none.
        """
        name = role["metadata"]["name"]
        if not self.namespaces:
            yield role
            if self.subject:
                yield self._binding("ClusterRole", name)
            return
        inside = [rule for rule in role["rules"] if "namespaces" not in rule["resources"]]
        for namespace in self.namespaces:
            yield from self._bound(name, namespace, inside)
        # The right to read a namespace is one within that namespace.
        rest = [rule for rule in role["rules"] if rule not in inside]
        yield from self._bound(IDENTITY_ROLE, IDENTITY_NAMESPACE, rest)

    def _bound(self, name: str, namespace: str, rules: list[Any]) -> Iterator[dict[str, Any]]:
        meta = {"name": name, "namespace": namespace}
        yield {"apiVersion": VERSION, "kind": "Role", "metadata": meta, "rules": rules}
        yield self._binding("Role", name, namespace)

    def _binding(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        meta = {"name": name} | ({"namespace": namespace} if namespace else {})
        return {
            "apiVersion": VERSION,
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": RIGHTS_GROUP, "kind": kind, "name": name},
            "subjects": [self._subject()],
        }

    def _subject(self) -> dict[str, str]:
        text = self.subject or DEFAULT_SUBJECT
        kind, _, rest = text.partition("/")
        if kind in ("user", "group") and rest:
            return {"apiGroup": RIGHTS_GROUP, "kind": _KINDS[kind], "name": rest}
        namespace, _, name = rest.partition("/")
        if kind != "serviceaccount" or not namespace or not name or "/" in name:
            refuse("subject", repr(text), "user/NAME, group/NAME or serviceaccount/NAMESPACE/NAME")
        return {"kind": _KINDS[kind], "namespace": namespace, "name": name}


EVERYWHERE = Rights()


MANAGER = "farmd"
ESTABLISHED_SECONDS = 60.0
GROUP = "farmd.io"
OURS = ("farmjobs",)
PROGRESSIVE = ("rolloutorchestrators", "stagepodautoscalers", "clusterrole-progressive")
KNATIVE = "services.serving.knative.dev"
ROLES = Resource(RIGHTS_GROUP, "v1", "clusterroles", "ClusterRole", namespaced=False)
_RESOURCES = {
    each.kind: each
    for each in (
        CRDS,
        ROLES,
        Resource(ROLES.group, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
        Resource(ROLES.group, "v1", "roles", "Role"),
        Resource(ROLES.group, "v1", "rolebindings", "RoleBinding"),
    )
}
# What of an object of rights must be as it is shipped.
_SHIPPED = ("rules", "roleRef", "subjects")


@dataclass(frozen=True, slots=True)
class Installed:
    """One object of the installation; ``state`` is for people."""

    kind: str
    name: str
    state: str


def documents(
    jobs: Sequence[str], *, progressive: bool = False, rights: Rights = EVERYWHERE
) -> Iterator[dict[str, Any]]:
    """All objects that farms need for these kinds of jobs, and for progressive rollouts.

    Raises:
        InputInvalid: the subject of the rights is none.
    """
    folder = resources.files("farmd.kubernetes.manifests")
    names = [*(plural for plural in jobs if plural in OURS), "clusterrole"]
    for name in [*names, *(PROGRESSIVE if progressive else ())]:
        found = yaml.safe_load((folder / f"{name}.yaml").read_text())
        yield from rights.of(found) if found["kind"] == ROLES.kind else (found,)


async def install(
    transport: KubernetesTransport,
    jobs: Sequence[str],
    clock: Clock,
    *,
    progressive: bool = False,
    rights: Rights = EVERYWHERE,
) -> list[Installed]:
    """Apply everything but others' definitions, and wait until the API server serves the new resources.

    Raises:
        KubernetesError: the server refuses, or does not establish a definition in time.
    """
    found = list(documents(jobs, progressive=progressive, rights=rights))
    for each in found:
        if _is_anothers(await _read(transport, each)):
            continue
        params = applying(MANAGER, force=True)
        body = json.dumps(each).encode()
        await transport.send(ApiRequest("PATCH", _path(each), params, body=body, content_type=APPLY_PATCH))
    for each in found:
        await _served(transport, each, clock)
    return await status(transport, jobs, progressive=progressive, rights=rights)


async def status(
    transport: KubernetesTransport,
    jobs: Sequence[str],
    *,
    progressive: bool = False,
    rights: Rights = EVERYWHERE,
) -> list[Installed]:
    """What of it is there; for progressive rollouts also the version of Knative."""
    found = []
    for each in documents(jobs, progressive=progressive, rights=rights):
        name = each["metadata"]["name"]
        state = _state(each, await _read(transport, each))
        if state == "established" and (fields := await lacking(transport, each)):
            state = f"older: lacks {listed(fields, 3)}"
        found.append(Installed(each["kind"], name, state))
    if progressive:
        services = await _read(transport, {"kind": CRDS.kind, "metadata": {"name": KNATIVE}})
        found.append(Installed("Knative", KNATIVE, _version(services)))
    return found


async def uninstall(
    transport: KubernetesTransport,
    jobs: Sequence[str],
    *,
    progressive: bool = False,
    rights: Rights = EVERYWHERE,
) -> list[Installed]:
    """Remove everything but others' definitions, unless objects of a definition exist.

    Raises:
        Conflict: such objects exist; nothing was removed.
    """
    states: dict[str, str] = {}
    found = list(documents(jobs, progressive=progressive, rights=rights))
    for each in found:
        there = await _read(transport, each)
        states[_path(each)] = (
            "absent" if there is None else "not farmd's" if _is_anothers(there) else "removed"
        )
        if each["kind"] == CRDS.kind and states[_path(each)] == "removed":
            await _refuse_objects(transport, each)
    for path, state in reversed(states.items()):
        if state == "removed":
            await _delete(transport, path)
    return [
        Installed(each["kind"], each["metadata"]["name"], states[_path(each)]) for each in reversed(found)
    ]


async def _delete(transport: KubernetesTransport, path: str) -> None:
    with suppress(NotFound):
        await transport.send(ApiRequest("DELETE", path))


async def _refuse_objects(transport: KubernetesTransport, definition: dict[str, Any]) -> None:
    spec = definition["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    try:
        listed = json.loads(await transport.send(ApiRequest("GET", path, (("limit", "1"),))))
    except NotFound:
        return
    if listed["items"]:
        meta = listed["items"][0]["metadata"]
        first = f"{meta['namespace']}/{meta['name']}"
        name, what = definition["metadata"]["name"], "jobs" if spec["group"] == GROUP else "objects"
        raise Conflict(f"{name}: found {what}, such as {first}, expected none: delete them first")


async def _served(transport: KubernetesTransport, each: dict[str, Any], clock: Clock) -> None:
    """Return once a definition's resource answers."""
    if each["kind"] != CRDS.kind:
        return
    until = clock.mono() + ESTABLISHED_SECONDS
    while _state(each, await _read(transport, each)) != "established":
        if clock.mono() > until:
            raise Conflict(f"{each['metadata']['name']}: not established after {ESTABLISHED_SECONDS:g} s")
        await clock.sleep(0.1)


async def _read(transport: KubernetesTransport, each: dict[str, Any]) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(await transport.send(ApiRequest("GET", _path(each))))
    except NotFound:
        return None
    return found


def _state(each: dict[str, Any], there: dict[str, Any] | None) -> str:
    if there is None:
        return "absent"
    if each["kind"] != CRDS.kind:
        alike = all(there.get(field) == each.get(field) for field in _SHIPPED)
        return "there" if alike else "differs"
    conditions = there.get("status", {}).get("conditions") or []
    served = any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
    return "established" if served else "waits"


def _is_anothers(there: dict[str, Any] | None) -> bool:
    """Whether a definition was brought by another installation, which keeps it up to date."""
    if there is None or there["kind"] != CRDS.kind or there["spec"]["group"] == GROUP:
        return False
    managers = there["metadata"].get("managedFields") or ()
    return not any(each["manager"] == MANAGER and each["operation"] == "Apply" for each in managers)


def _version(services: dict[str, Any] | None) -> str:
    """The version of Knative, which its definitions bear as a label."""
    if services is None:
        return "absent"
    version: str = services["metadata"].get("labels", {}).get("app.kubernetes.io/version") or "unknown"
    return version


def _path(each: dict[str, Any]) -> str:
    meta = each["metadata"]
    return _RESOURCES[each["kind"]].path(meta.get("namespace", ""), meta["name"])
