"""Requests of one app to an API server, made as the app's own user: its rights decide what it may touch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farmd.kubernetes.apps.discovery import Discovery
from farmd.kubernetes.apps.marks import MANAGER
from farmd.kubernetes.client import APPLY_PATCH, MERGE_PATCH, applying
from farmd.kubernetes.errors import NotFound, Unavailable
from farmd.kubernetes.pace import Priority
from farmd.kubernetes.resources import Resource
from farmd.kubernetes.transport import JSON, REQUEST_SECONDS, KubernetesTransport, Request
from store.apps import TypedReference

JSON_PATCH = "application/json-patch+json"
# An apply for this version creates an object, and changes none: the first write of a server has a higher one.
CREATION = "1"
Object = dict[str, Any]
# Managers whose fields become the app's when it takes an object over: all that its people ever applied.
_TAKEN_OVER = {("kubectl-client-side-apply", "Update"), ("kubectl", "Apply")}


def taken_over(conflict: str) -> bool:
    """Whether what the server says of a taken field names a manager whose fields an adoption takes along."""
    return any(f'"{manager}"' in conflict for manager, _ in _TAKEN_OVER)


def user_of(app: str) -> str:
    """Who an app is for the API server."""
    return f"farmd:app:{app}"


class Api:
    """What an app reads and writes; ``validity`` returns the seconds that a write may take, and raises where
    none may be made now. Without ``impersonate`` requests are made as the caller.
    """

    def __init__(
        self,
        transport: KubernetesTransport,
        discovery: Discovery,
        app: str,
        validity: Callable[[], float],
        *,
        impersonate: bool = True,
    ) -> None:
        self._transport, self._discovery, self._validity = transport, discovery, validity
        self._user = user_of(app) if impersonate else ""

    def now(self) -> float:
        """Seconds since the epoch by the server's clock, up to one less."""
        return self._transport.now()

    async def resource(self, ref: TypedReference) -> Resource | None:
        """The resource of an object's kind; None: the server has no such kind.

        Raises:
            KubernetesError: it has the kind, and does not serve it now.
        """
        return await self._discovery.find(ref.api_version, ref.kind)

    async def get(self, ref: TypedReference) -> Object | None:
        """The object as the server has it now; None: it is not there, or its kind is gone.

        Raises:
            KubernetesError: the server refuses, or does not serve the kind now.
        """
        if (resource := await self.resource(ref)) is None:
            return None
        try:
            return await self._send("GET", resource.path(ref.namespace, ref.name))
        except NotFound as error:
            if error.reason:
                return None
            self._discovery.forget(ref.api_version, ref.kind)
            if await self.resource(ref) is None:
                return None
            raise Unavailable(f"{ref}: its kind is defined, and not served now") from error

    async def apply(
        self,
        ref: TypedReference,
        body: Mapping[str, Any],
        found: Object | None,
        *,
        force: bool,
        dry: bool = False,
    ) -> Object:
        """Have the app's manager own exactly these fields; of an object that is there, of this very version,
        else of a new one.

        Raises:
            FieldsTaken: others own some of them, without ``force``. Conflict: it is another version, or an
                object is there now.
        """
        there = {"resourceVersion": CREATION} if found is None else _version(found)
        meta = {**body["metadata"], **there}
        params = applying(MANAGER, force=force, dry_run=dry)
        resource = await self._served(ref)
        path = resource.path(ref.namespace, ref.name)
        return await self._send("PATCH", path, {**body, "metadata": meta}, APPLY_PATCH, params)

    async def take_over(self, ref: TypedReference, found: Object) -> Object:
        """Make what people applied before the app's own; else what their files drop would stay for ever."""
        fields = found["metadata"].get("managedFields") or []
        if not any((each["manager"], each["operation"]) in _TAKEN_OVER for each in fields):
            return found
        kept = [each for each in fields if (each["manager"], each["operation"]) not in _TAKEN_OVER]
        taken = [each for each in fields if each not in kept]
        ours = {**taken[-1], "manager": MANAGER, "operation": "Apply"}
        ours["fieldsV1"] = _joined([each["fieldsV1"] for each in taken])
        meta, path = found["metadata"], "/metadata"
        patch = [
            {"op": "test", "path": f"{path}/resourceVersion", "value": meta["resourceVersion"]},
            {"op": "replace", "path": f"{path}/managedFields", "value": [*kept, ours]},
        ]
        resource = await self._served(ref)
        return await self._send("PATCH", resource.path(ref.namespace, ref.name), patch, JSON_PATCH)

    async def mark(self, ref: TypedReference, found: Object, labels: Any, annotations: Any) -> Object:
        """Change labels and annotations of an object of this very version."""
        return await self.patch(ref, found, {"metadata": {"labels": labels, "annotations": annotations}})

    async def patch(self, ref: TypedReference, found: Object, body: Mapping[str, Any]) -> Object:
        """Change fields of an object of this very version."""
        patch = {**body, "metadata": {**body.get("metadata", {}), **_version(found)}}
        resource = await self._served(ref)
        params = [("fieldManager", MANAGER)]
        return await self._send("PATCH", resource.path(ref.namespace, ref.name), patch, MERGE_PATCH, params)

    async def delete(self, ref: TypedReference, found: Object) -> None:
        """Delete an object of this very version; what it owns follows."""
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": _version(found),
            "propagationPolicy": "Background",
        }
        resource = await self._served(ref)
        try:
            await self._send("DELETE", resource.path(ref.namespace, ref.name), options)
        except NotFound:
            return

    async def _served(self, ref: TypedReference) -> Resource:
        found = await self.resource(ref)
        if found is None:
            raise NotFound(f"the server has no kind {ref.kind} of {ref.api_version}", status=404)
        return found

    async def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = JSON,
        params: Sequence[tuple[str, str]] = (),
    ) -> Object:
        request = Request(
            method,
            path,
            params,
            body=b"" if body is None else json.dumps(body).encode(),
            content_type=content_type,
            priority=Priority.READ if method == "GET" else Priority.STATUS,
            user=self._user,
        )
        limit = REQUEST_SECONDS if method == "GET" else min(REQUEST_SECONDS, self._validity())
        found: Object = json.loads(await self._transport.send(request, limit))
        return found


def _version(found: Object) -> dict[str, str]:
    """What a write names of an object, so that it changes this very version."""
    return {name: found["metadata"][name] for name in ("uid", "resourceVersion")}


def _joined(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The union of several sets of fields."""
    found: dict[str, Any] = {}
    for each in fields:
        for name, inner in each.items():
            found[name] = _joined([found[name], inner]) if name in found else dict(inner)
    return found
