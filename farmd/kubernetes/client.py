"""Writes of objects under a farm's session: conditional, in time, known to the watch's store at once.

No request outlives the session's remaining validity (R16). A merge patch names its own fields alone; no
object is ever sent back whole, which would erase the fields that this version does not know.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from farmd.kubernetes import objects
from farmd.kubernetes.errors import Conflict, Invalid, Misfit, NotFound, decoded
from farmd.kubernetes.objects import Resource
from farmd.kubernetes.pace import Priority
from farmd.kubernetes.store import Object, ObjectStore
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
DRY_RUN = (("dryRun", "All"),)
ObjectT = TypeVar("ObjectT", bound=Object)


def applying(manager: str, *, force: bool, dry_run: bool = False) -> list[tuple[str, str]]:
    """The parameters of a server-side apply (``APPLY_PATCH``)."""
    params = [("fieldManager", manager), ("force", str(force).lower())]
    return [*params, ("dryRun", "All")] if dry_run else params


class Objects(Generic[ObjectT]):
    """The objects of one resource, as ``user`` (none: the caller), who pays for what no ``key`` names;
    ``store`` learns of own writes.

    ``validity`` returns the seconds that a request may take, and raises where this process may not write now.
    ``misfits`` gets a line for each object that a list leaves out because it does not decode.
    """

    def __init__(
        self,
        transport: KubernetesTransport,
        resource: Resource,
        kind: type[ObjectT],
        label: str,
        validity: Callable[[], float],
        store: ObjectStore[ObjectT] | None = None,
        misfits: builtins.list[str] | None = None,
        user: str = "",
    ) -> None:
        self._transport, self._resource, self._label = transport, resource, label
        self._user = user
        self._decoder = msgspec.json.Decoder(kind)
        self._validity = validity
        self._store = store
        self.misfits = [] if misfits is None else misfits

    async def get(self, namespace: str, name: str, key: str = "") -> ObjectT | None:
        """One object as the server has it now; None: there is none of that name."""
        path = self._resource.path(namespace, name)
        payer = key or self._user
        request = ApiRequest(
            "GET", path, resource=self._label, priority=Priority.STATUS, key=payer, user=self._user
        )
        try:
            return self._learn(await self._transport.send(request))
        except NotFound as error:
            _object_is_missing(error)
            return None

    async def list(self, namespace: str = "", selector: str = "") -> Sequence[ObjectT]:
        """The objects of a namespace, or of all, as the server has them now; one that does not decode is
        named in ``misfits`` and left out.
        """
        found: list[ObjectT] = []
        following = ""
        while True:
            params = objects.params(selector, following)
            request = ApiRequest(
                "GET", self._resource.path(namespace), params, resource=self._label, user=self._user
            )
            page = decoded(await self._transport.send(request), objects.Page, str(request))
            for each in page.items or ():
                try:
                    found.append(self._decode(each))
                except Misfit as error:
                    self.misfits.append(error.message)
            following = page.metadata.next
            if not following:
                return found

    async def names(self, namespace: str, most: int) -> Collection[str] | None:
        """The names of all objects of a namespace (empty: of a resource that has none) as the server has them
        now; None: there are more than ``most``.
        """
        path, params = self._resource.path(namespace), objects.params("", "", most)
        request = ApiRequest(
            "GET", path, params, resource=self._label, user=self._user, accept=objects.LISTED_METADATA
        )
        page = decoded(await self._transport.send(request), objects.Page, str(request))
        if page.metadata.next:
            return None
        return {decoded(each, objects.Named, str(request)).metadata.name for each in page.items or ()}

    async def create(
        self,
        namespace: str,
        body: Mapping[str, Any],
        key: str = "",
        *,
        params: Sequence[tuple[str, str]] = (),
    ) -> ObjectT:
        """Create an object; its name is in the body."""
        typed = {"apiVersion": self._resource.api_version, "kind": self._resource.kind, **body}
        path = self._resource.path(namespace)
        return self._learn(await self._write("POST", path, typed, Priority.CREATE, key, params=params))

    async def replaced(
        self, namespace: str, name: str, body: Mapping[str, Any], params: Sequence[tuple[str, str]] = ()
    ) -> ObjectT:
        """What an object would be if ``body`` took its place; nothing is written."""
        path = self._resource.path(namespace, name)
        answer = await self._write("PUT", path, body, Priority.STATUS, "", params=(*DRY_RUN, *params))
        return self._decode(answer)

    async def patch(
        self,
        namespace: str,
        name: str,
        patch: Any,
        *,
        uid: str = "",
        version: str = "",
        subresource: str = "",
        content_type: str = MERGE_PATCH,
        manager: str = "",
        key: str = "",
    ) -> ObjectT:
        """Patch an object; with ``uid`` and ``version`` only if it is still that one."""
        if there := _named(uid, version):
            patch = {**patch, "metadata": {**patch.get("metadata", {}), **there}}
        path = self._resource.path(namespace, name, subresource)
        params = [("fieldManager", manager)] if manager else []
        answer = await self._write("PATCH", path, patch, Priority.STATUS, key, content_type, params)
        return self._learn(answer)

    async def apply(
        self,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        manager: str,
        force: bool = False,
        uid: str = "",
        version: str = "",
        dry_run: bool = False,
        key: str = "",
    ) -> ObjectT:
        """Have ``manager`` own exactly the fields of ``body``; an object that is not there is created.

        With ``uid`` the object must be there and be that one; with ``version`` too, that version of it.
        ``force`` takes fields from other managers. A dry run returns what the object would be.

        Raises:
            FieldsTaken: others own the fields. Conflict: it is another object, or another version of it.
        """
        meta = {**body.get("metadata", {}), "name": name, **_named(uid, version)}
        typed = {"apiVersion": self._resource.api_version, "kind": self._resource.kind, **body}
        path, params = self._resource.path(namespace, name), applying(manager, force=force, dry_run=dry_run)
        try:
            answer = await self._write(
                "PATCH", path, {**typed, "metadata": meta}, Priority.STATUS, key, APPLY_PATCH, params
            )
        except Invalid as error:
            if uid and "metadata.uid" in error.causes:
                raise Conflict(error.message, status=409, reason="Conflict") from error
            raise
        return self._decode(answer) if dry_run else self._learn(answer)

    async def delete(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        version: str = "",
        cascade: Literal["", "Background", "Foreground"] = "",
        at_once: bool = False,
        key: str = "",
    ) -> None:
        """Delete the object of that uid; with ``version`` only if it is still that one.

        ``cascade``: what it owns follows later (Background), or goes first (Foreground). ``at_once``: a pod
        gets no time to end.
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        options["preconditions"] = _named(uid, version)
        if at_once:
            options["gracePeriodSeconds"] = 0
        if cascade:
            options["propagationPolicy"] = cascade
        path = self._resource.path(namespace, name)
        try:
            await self._write("DELETE", path, options, Priority.DELETE, key)
        except NotFound as error:
            _object_is_missing(error)

    async def _write(
        self,
        method: str,
        path: str,
        body: Any,
        priority: Priority,
        key: str,
        content_type: str = "application/json",
        params: Sequence[tuple[str, str]] = (),
    ) -> bytes:
        request = ApiRequest(
            method,
            path,
            params,
            body=msgspec.json.encode(body),
            content_type=content_type,
            resource=self._label,
            priority=priority,
            key=key or self._user,
            user=self._user,
            validity=self._validity,
        )
        return await self._transport.send(request)

    def _learn(self, body: bytes) -> ObjectT:
        found = self._decode(body)
        if self._store is not None:
            self._store.own(found)
        return found

    def _decode(self, body: bytes | msgspec.Raw) -> ObjectT:
        """An object of an answer.

        Raises:
            Misfit: it does not decode; names it. UnexpectedAnswer: no answer of an API server.
        """
        try:
            return self._decoder.decode(bytes(body))
        except msgspec.DecodeError as error:
            meta = decoded(body, objects.Named, str(self._resource)).metadata
            raise Misfit(f"{self._resource} {meta.namespace}/{meta.name}: {error}") from error


def _named(uid: str, version: str) -> dict[str, str]:
    """What a write names of an object, so that it changes that one alone."""
    return {field: text for field, text in (("uid", uid), ("resourceVersion", version)) if text}


def _object_is_missing(error: NotFound) -> None:
    """Raise if a 404 is about the resource itself, so that it proves nothing about the object."""
    if not error.reason:
        raise error
