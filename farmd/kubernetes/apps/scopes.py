"""Enters workloads into the lists of KubeVela's scopes, and takes them out again.

The ScopeDefinition of a kind of scope says which field has the list; where it names none, nothing is listed.
What must never break: entries of others stay, in their order; what is listed already is not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from farmd.kubernetes.errors import Conflict, NotFound
from farmd.kubernetes.objects import Resource
from store.apps import TypedReference

DEFINITION = "core.oam.dev/v1beta1"
SYSTEM_NAMESPACE = "vela-system"
TRIES = 5
Item = Mapping[str, Any]


class Scoped(Protocol):
    """The requests that scopes need."""

    async def resource(self, ref: TypedReference) -> Resource | None: ...

    async def get(self, ref: TypedReference) -> dict[str, Any] | None: ...

    async def patch(self, ref: TypedReference, found: dict[str, Any], body: Item) -> Any: ...


async def reference_scopes(api: Scoped, workload: TypedReference, scopes: Sequence[TypedReference]) -> None:
    """Enter a workload into the lists of these scopes.

    Raises:
        NotFound: a scope is not there, or nothing defines its kind.
    """
    for scope in scopes:
        if await _path(api, scope) is None:
            raise NotFound(f"{scope}: no ScopeDefinition defines its kind", status=404)
        await _write(api, scope, lambda items: [*items, _item(workload)], workload, listed=True)


async def dereference_scopes(api: Scoped, workload: TypedReference, scopes: Sequence[TypedReference]) -> None:
    """Take a workload out of the lists of these scopes; one that is gone, or that nothing defines, lists
    nothing.
    """
    for scope in scopes:
        if await api.get(scope) is None:
            continue
        await _write(
            api,
            scope,
            lambda items: [each for each in items if not _is(each, workload)],
            workload,
            listed=False,
        )


async def unreferenced(
    api: Scoped, workload: TypedReference, scopes: Sequence[TypedReference]
) -> list[TypedReference]:
    """Of these scopes those that should list a workload and do not."""
    return [scope for scope in scopes if not await _lists(api, scope, workload)]


async def _lists(api: Scoped, scope: TypedReference, workload: TypedReference) -> bool:
    path, found = await _path(api, scope), await api.get(scope)
    return found is not None and (
        path == [] or any(_is(each, workload) for each in _items(found, path or []))
    )


async def _write(
    api: Scoped,
    scope: TypedReference,
    change: Callable[[list[Item]], list[Item]],
    workload: TypedReference,
    *,
    listed: bool,
) -> None:
    """Change a scope's list, unless it lists the workload as it should; again where another writer was
    first.
    """
    for left in reversed(range(TRIES)):
        path, found = await _path(api, scope), await api.get(scope)
        if not path:
            return
        if found is None:
            raise NotFound(f"{scope}: not found", status=404)
        items = _items(found, path)
        if any(_is(each, workload) for each in items) is listed:
            return
        body: Any = change(items)
        for name in reversed(path):
            body = {name: body}
        try:
            await api.patch(scope, found, body)
        except Conflict:
            if not left:
                raise
        else:
            return


async def _path(api: Scoped, scope: TypedReference) -> list[str] | None:
    """The field that has the list of a kind of scope; empty: it has none. None: nothing defines the kind."""
    if (resource := await api.resource(scope)) is None:
        return None
    for namespace in dict.fromkeys((scope.namespace, SYSTEM_NAMESPACE)):
        named = {"kind": "ScopeDefinition", "namespace": namespace, "name": str(resource)}
        found = await api.get(TypedReference(api_version=DEFINITION, **named))
        if found is not None:
            path: str = found["spec"].get("workloadRefsPath") or ""
            return path.split(".") if path else []
    return None


def _items(found: Item, path: Sequence[str]) -> list[Item]:
    """The entries of a scope's list; a list that is not there has none."""
    place: Any = found
    for name in path:
        place = place.get(name) if isinstance(place, Mapping) else None
    return list(place) if isinstance(place, list) else []


def _item(workload: TypedReference) -> dict[str, str]:
    return {"apiVersion": workload.api_version, "kind": workload.kind, "name": workload.name}


def _is(item: Item, workload: TypedReference) -> bool:
    """Whether an entry is this workload; namespace and uid do not count."""
    return all(item.get(name) == value for name, value in _item(workload).items())
