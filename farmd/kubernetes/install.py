"""Puts what farmd needs into a cluster: the definitions of its own resources, and the rights of farms.

Server-side apply under one manager's name: a second run changes nothing, and fields of others stay. Nothing
is removed while jobs exist, because the API server would delete them all with their definition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from farmd.kubernetes.client import APPLY_PATCH, applying
from farmd.kubernetes.errors import NotFound
from farmd.kubernetes.resources import CRDS, Resource
from farmd.kubernetes.transport import KubernetesTransport, Request
from store.errors import Conflict
from store.ports import Clock

MANAGER = "farmd"
ESTABLISHED_SECONDS = 60.0
OURS = ("farmjobs",)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
_RESOURCES = {each.kind: each for each in (CRDS, ROLES)}


@dataclass(frozen=True, slots=True)
class Installed:
    """One object of the installation; ``state`` is for people."""

    kind: str
    name: str
    state: str


def documents(jobs: Sequence[str]) -> Iterator[dict[str, Any]]:
    """All objects that farms need for these kinds of jobs, as YAML would have them."""
    folder = resources.files("farmd.kubernetes.manifests")
    for plural in jobs:
        if plural in OURS:
            yield yaml.safe_load((folder / f"{plural}.yaml").read_text())
    role: dict[str, Any] = yaml.safe_load((folder / "clusterrole.yaml").read_text())
    yield role


async def install(transport: KubernetesTransport, jobs: Sequence[str], clock: Clock) -> list[Installed]:
    """Apply everything, and wait until the API server serves the new resources.

    Raises:
        KubernetesError: the server refuses, or does not establish a definition in time.
    """
    found = list(documents(jobs))
    for each in found:
        params = applying(MANAGER, force=True)
        body = json.dumps(each).encode()
        await transport.send(Request("PATCH", _path(each), params, body=body, content_type=APPLY_PATCH))
    for each in found:
        await _served(transport, each, clock)
    return await status(transport, jobs)


async def status(transport: KubernetesTransport, jobs: Sequence[str]) -> list[Installed]:
    """What of it is there."""
    found = []
    for each in documents(jobs):
        name = each["metadata"]["name"]
        there = await _read(transport, each)
        found.append(Installed(each["kind"], name, _state(each, there)))
    return found


async def uninstall(transport: KubernetesTransport, jobs: Sequence[str]) -> list[Installed]:
    """Remove everything, unless a job exists.

    Raises:
        Conflict: jobs exist; nothing was removed.
    """
    found = list(documents(jobs))
    for each in found:
        if each["kind"] == CRDS.kind and await _read(transport, each) is not None:
            await _refuse_jobs(transport, each)
    removed = []
    for each in reversed(found):
        try:
            await transport.send(Request("DELETE", _path(each)))
            removed.append(Installed(each["kind"], each["metadata"]["name"], "removed"))
        except NotFound:
            removed.append(Installed(each["kind"], each["metadata"]["name"], "absent"))
    return removed


async def _refuse_jobs(transport: KubernetesTransport, definition: dict[str, Any]) -> None:
    spec = definition["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    try:
        listed = json.loads(await transport.send(Request("GET", path, (("limit", "1"),))))
    except NotFound:
        return
    if listed["items"]:
        meta = listed["items"][0]["metadata"]
        first = f"{meta['namespace']}/{meta['name']}"
        raise Conflict(
            f"{definition['metadata']['name']}: found jobs, such as {first}, expected none: delete them first"
        )


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
        found: dict[str, Any] = json.loads(await transport.send(Request("GET", _path(each))))
    except NotFound:
        return None
    return found


def _state(each: dict[str, Any], there: dict[str, Any] | None) -> str:
    if there is None:
        return "absent"
    if each["kind"] != CRDS.kind:
        return "there" if there["rules"] == each["rules"] else "differs"
    conditions = there.get("status", {}).get("conditions") or []
    served = any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
    return "established" if served else "waits"


def _path(each: dict[str, Any]) -> str:
    return _RESOURCES[each["kind"]].path(name=each["metadata"]["name"])
