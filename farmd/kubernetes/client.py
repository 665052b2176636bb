"""Writes of objects under a farm's session: conditional, in time, known to the watch's store at once.

No request outlives the session's remaining validity (R16). A merge patch names its own fields alone; no
object is ever sent back whole, which would erase the fields that this version does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from farmd.kubernetes.errors import NotFound
from farmd.kubernetes.pace import Priority
from farmd.kubernetes.resources import Resource
from farmd.kubernetes.store import Object, ObjectStore
from farmd.kubernetes.transport import REQUEST_SECONDS, KubernetesTransport, Request

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
ObjectT = TypeVar("ObjectT", bound=Object)


class Objects(Generic[ObjectT]):
    """The objects of one resource; ``store`` learns of own writes. ``validity`` returns the seconds that a
    request may take, and raises where this process may not write now.
    """

    def __init__(
        self,
        transport: KubernetesTransport,
        resource: Resource,
        kind: type[ObjectT],
        label: str,
        validity: Callable[[], float],
        store: ObjectStore[ObjectT] | None = None,
    ) -> None:
        self._transport, self._resource, self._label = transport, resource, label
        self._decoder = msgspec.json.Decoder(kind)
        self._validity = validity
        self._store = store

    async def get(self, namespace: str, name: str, key: str = "") -> ObjectT | None:
        """One object as the server has it now; None: there is none of that name."""
        path = self._resource.path(namespace, name)
        request = Request("GET", path, resource=self._label, priority=Priority.STATUS, key=key)
        try:
            return self._learn(await self._transport.send(request))
        except NotFound:
            return None

    async def create(self, namespace: str, body: Mapping[str, Any], key: str = "") -> ObjectT:
        """Create an object; its name is in the body."""
        typed = {"apiVersion": self._resource.api_version, "kind": self._resource.kind, **body}
        path = self._resource.path(namespace)
        return self._learn(await self._write("POST", path, typed, Priority.CREATE, key))

    async def patch(
        self,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        version: str = "",
        subresource: str = "",
        content_type: str = MERGE_PATCH,
        key: str = "",
    ) -> ObjectT:
        """Patch an object; with ``version`` only if it is still that one."""
        if version:
            patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}
        path = self._resource.path(namespace, name, subresource)
        return self._learn(await self._write("PATCH", path, patch, Priority.STATUS, key, content_type))

    async def delete(
        self, namespace: str, name: str, *, uid: str, version: str, cascade: bool = False, key: str = ""
    ) -> None:
        """Delete the object of that uid in that version; ``cascade``: what it owns follows later."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        options["preconditions"] = {"uid": uid, "resourceVersion": version}
        if cascade:
            options["propagationPolicy"] = "Background"
        path = self._resource.path(namespace, name)
        try:
            await self._write("DELETE", path, options, Priority.DELETE, key)
        except NotFound as error:
            if not error.reason:
                raise  # the resource itself is not there, which says nothing of the object

    async def _write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        priority: Priority,
        key: str,
        content_type: str = "application/json",
    ) -> bytes:
        request = Request(
            method,
            path,
            body=msgspec.json.encode(body),
            content_type=content_type,
            resource=self._label,
            priority=priority,
            key=key,
        )
        return await self._transport.send(request, min(REQUEST_SECONDS, self._validity()))

    def _learn(self, body: bytes) -> ObjectT:
        found = self._decoder.decode(body)
        if self._store is not None:
            self._store.own(found)
        return found
