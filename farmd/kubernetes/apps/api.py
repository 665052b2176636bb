"""Requests of one app to an API server, made as the app's own user: its rights decide what it may touch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from farmd.kubernetes.apps.marks import MANAGER
from farmd.kubernetes.client import Objects
from farmd.kubernetes.errors import NotFound, Unavailable
from farmd.kubernetes.objects import CRDS, Resource
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from store.apps import TypedReference

# Which resource an object of some kind is, as the API server says.
#
# A kind is gone only if the server knows its group no more or its group lacks the kind, and no definition
# of it is there: else the objects are there and only not served now (R20).


class Discovery:
    """The resources of one API server; what was found is kept, what was not is asked again."""

    def __init__(self, transport: KubernetesTransport) -> None:
        self._transport = transport
        self._known: dict[tuple[str, str], Resource] = {}

    async def find(self, api_version: str, kind: str) -> Resource | None:
        """The resource of a kind; None: the server has no such kind.

        Raises:
            Unavailable: it has the kind and does not serve it now.
        """
        if (known := self._known.get((api_version, kind))) is not None:
            return known
        self._known |= await self._served(api_version)
        if (known := self._known.get((api_version, kind))) is not None:
            return known
        group = api_version.rpartition("/")[0]
        if group and await self._defined(group, kind):
            raise Unavailable(f"{kind}.{group}: it is defined, but {api_version} is not served now")
        return None

    def forget(self, api_version: str, kind: str) -> None:
        """Ask again next time: the server does not know the path any more."""
        self._known.pop((api_version, kind), None)

    async def _served(self, api_version: str) -> dict[tuple[str, str], Resource]:
        group, _, version = api_version.rpartition("/")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            listed = await self._read(path)
        except NotFound:
            return {}
        return {
            (api_version, each["kind"]): Resource(
                group, version, each["name"], each["kind"], namespaced=each["namespaced"]
            )
            for each in listed["resources"]
            if "/" not in each["name"]
        }

    async def _defined(self, group: str, kind: str) -> bool:
        """Whether a definition of the kind is there."""
        for each in (await self._read(CRDS.path()))["items"]:
            spec = each["spec"]
            if (spec["group"], spec["names"]["kind"]) == (group, kind):
                return True
        return False

    async def _read(self, path: str) -> Any:
        return json.loads(await self._transport.send(ApiRequest("GET", path)))


JSON_PATCH = "application/json-patch+json"
# An apply for this version creates an object, and changes none: the first write of a server has a higher one.
CREATION = "1"
Object = dict[str, Any]
# Managers whose fields become the app's when it takes an object over: all that its people ever applied.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_TAKEN_OVER = {("kubectl-client-side-apply", "Update"), ("kubectl", "Apply")}


def taken_over(conflict: str) -> bool:
    """Whether the server's conflict names a manager whose fields an adoption takes over."""
    return any(f'"{manager}"' in conflict for manager, _ in _TAKEN_OVER)


def user_of(app: str) -> str:
    """The user as which an app's requests are made."""
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
        self._objects: dict[Resource, Objects[Any]] = {}

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
            found: Object | None = await self._of(resource).get(ref.namespace, ref.name)
        except NotFound as error:
            self._discovery.forget(ref.api_version, ref.kind)
            if await self.resource(ref) is None:
                return None
            raise Unavailable(f"{ref}: its kind is defined, but not served now") from error
        return found

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
        uid, version = ("", CREATION) if found is None else _version(found)
        objects = await self._served(ref)
        made: Object = await objects.apply(
            ref.namespace,
            ref.name,
            body,
            manager=MANAGER,
            force=force,
            uid=uid,
            version=version,
            dry_run=dry,
        )
        return made

    async def take_over(self, ref: TypedReference, found: Object) -> Object:
        """Take over the fields that people applied before; otherwise fields that their files drop would stay
        forever.
        """
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
        objects = await self._served(ref)
        made: Object = await objects.patch(ref.namespace, ref.name, patch, content_type=JSON_PATCH)
        return made

    async def mark(self, ref: TypedReference, found: Object, labels: Any, annotations: Any) -> Object:
        """Change labels and annotations of an object of this very version."""
        return await self.patch(ref, found, {"metadata": {"labels": labels, "annotations": annotations}})

    async def patch(self, ref: TypedReference, found: Object, body: Mapping[str, Any]) -> Object:
        """Change fields of an object of this very version."""
        objects, (uid, version) = await self._served(ref), _version(found)
        made: Object = await objects.patch(
            ref.namespace, ref.name, body, uid=uid, version=version, manager=MANAGER
        )
        return made

    async def delete(self, ref: TypedReference, found: Object) -> None:
        """Delete an object of this very version; what it owns follows."""
        objects, (uid, version) = await self._served(ref), _version(found)
        await objects.delete(ref.namespace, ref.name, uid=uid, version=version, cascade="Background")

    async def _served(self, ref: TypedReference) -> Objects[Any]:
        if (found := await self.resource(ref)) is None:
            raise NotFound(f"the server has no kind {ref.kind} of {ref.api_version}", status=404)
        return self._of(found)

    def _of(self, resource: Resource) -> Objects[Any]:
        if resource not in self._objects:
            made = Objects[Any](self._transport, resource, dict, "other", self._validity, user=self._user)
            self._objects[resource] = made
        return self._objects[resource]


def _version(found: Object) -> tuple[str, str]:
    """What a write names of an object, so that it changes this very version."""
    return found["metadata"]["uid"], found["metadata"]["resourceVersion"]


def unstated(found: Object, document: Mapping[str, Any]) -> list[str]:
    """The paths that people applied before, that no other manager has, and that the document does not
    state.
    """
    managers = found["metadata"].get("managedFields") or []
    people = [each for each in managers if (each["manager"], each["operation"]) in _TAKEN_OVER]
    others = _joined(
        [each["fieldsV1"] for each in managers if each not in people and not each.get("subresource")]
    )
    return sorted(_beyond(_joined([each["fieldsV1"] for each in people]), document, others, ""))


def _beyond(fields: Mapping[str, Any], said: Any, others: Mapping[str, Any], path: str) -> Iterator[str]:
    """The fields below a path that neither a document nor other managers have."""
    for name, inner in fields.items():
        sort, _, text = name.partition(":")
        if name == "." or text == _LAST_APPLIED:
            continue
        where = f"{path}[{text}]" if sort in "kv" else f"{path}.{text}" if path else text
        own = _part(said, sort, text)
        if own is None and name not in others:
            yield where
        elif own is not None and inner:
            yield from _beyond(inner, own, others.get(name, {}), where)


def _part(said: Any, sort: str, text: str) -> Any:
    """What a document says at one step of a managed field; None: nothing."""
    if sort == "f":
        return said.get(text) if isinstance(said, Mapping) else None
    wanted = msgspec.json.decode(text)
    items = said if isinstance(said, list) else []
    if sort == "v":
        return wanted if wanted in items else None
    # The server has added keys that a file need not state, such as the protocol of a port.
    return next((each for each in items if isinstance(each, Mapping) and _fits(each, wanted)), None)


def _fits(item: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(item.get(key, value) == value for key, value in wanted.items())


def _joined(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The union of several sets of fields."""
    found: dict[str, Any] = {}
    for each in fields:
        for name, inner in each.items():
            found[name] = _joined([found[name], inner]) if name in found else dict(inner)
    return found
