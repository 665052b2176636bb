"""Scopes of KubeVela: how workloads come into their lists and out of them (its own cases, and its faults)."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.kubernetes.apps.scopes import dereference_scopes, reference_scopes, unreferenced
from farmd.kubernetes.errors import Conflict, NotFound, Unavailable
from farmd.kubernetes.objects import Resource
from store.apps import TypedReference

GROUP = "core.oam.dev/v1beta1"
HEALTH = TypedReference(api_version=GROUP, kind="HealthScope", namespace="shop", name="health")
WEB = TypedReference(api_version="apps/v1", kind="Deployment", namespace="shop", name="web")
WEB_ITEM = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
OTHERS = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": name} for name in ("a", "b", "c")]


class Server:
    """A scope and the definition of its kind; ``path`` None: no definition, ``scope`` None: no scope.

    ``race`` are entries that another writer adds before the first write.
    """

    def __init__(self, scope: dict[str, Any] | None, path: str | None = "spec.workloadRefs") -> None:
        self.scope, self.path = scope, path
        self.updates = 0
        self.race: list[dict[str, str]] = []
        self.down = False

    async def resource(self, ref: TypedReference) -> Resource | None:
        assert ref == HEALTH
        return Resource("core.oam.dev", "v1beta1", "healthscopes", "HealthScope")

    async def get(self, ref: TypedReference) -> dict[str, Any] | None:
        if self.down:
            raise Unavailable("no answer")
        if ref.kind == "HealthScope":
            return self.scope
        here = (ref.namespace, ref.name) == ("vela-system", "healthscopes.core.oam.dev")
        return {"spec": {"workloadRefsPath": self.path}} if here and self.path is not None else None

    async def patch(self, ref: TypedReference, found: Any, body: Any) -> None:
        assert self.scope is not None
        if self.race:
            self.scope = {"spec": {"workloadRefs": [*self.items, self.race.pop()]}}
            raise Conflict("the object has been modified", status=409)
        self.updates += 1
        self.scope = {**self.scope, **body}

    @property
    def items(self) -> list[Any]:
        assert self.scope is not None
        return list(self.scope["spec"].get("workloadRefs", []))


def listing(*items: dict[str, str]) -> Server:
    return Server({"spec": {"workloadRefs": list(items)}})


@pytest.mark.parametrize("server", [listing(), Server({"spec": {}})], ids=["an empty list", "no list"])
async def test_a_workload_is_entered_into_a_scope(server: Server) -> None:
    assert await unreferenced(server, WEB, [HEALTH]) == [HEALTH]
    await reference_scopes(server, WEB, [HEALTH])
    assert (server.items, server.updates) == ([WEB_ITEM], 1)
    assert await unreferenced(server, WEB, [HEALTH]) == []


async def test_what_is_listed_already_is_not_written_again() -> None:
    server = listing(*OTHERS, {**WEB_ITEM, "uid": "u", "namespace": "elsewhere"})
    await reference_scopes(server, WEB, [HEALTH])
    assert server.updates == 0


async def test_a_workload_leaves_a_scope_and_the_others_keep_their_order() -> None:
    server = listing(OTHERS[0], WEB_ITEM, *OTHERS[1:])
    await dereference_scopes(server, WEB, [HEALTH])
    assert (server.items, server.updates) == (OTHERS, 1)
    await dereference_scopes(server, WEB, [HEALTH])
    assert server.updates == 1


async def test_entries_of_another_writer_are_kept() -> None:
    server = listing()
    server.race = [OTHERS[0]]
    await reference_scopes(server, WEB, [HEALTH])
    assert server.items == [OTHERS[0], WEB_ITEM]


async def test_a_scope_that_others_write_all_the_time_is_an_error() -> None:
    server = listing()
    server.race = OTHERS * 3
    with pytest.raises(Conflict):
        await reference_scopes(server, WEB, [HEALTH])


async def test_a_kind_whose_definition_names_no_list_lists_nothing() -> None:
    server = Server({"spec": {}}, path="")
    await reference_scopes(server, WEB, [HEALTH])
    await dereference_scopes(server, WEB, [HEALTH])
    assert (server.updates, await unreferenced(server, WEB, [HEALTH])) == (0, [])


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (Server({"spec": {}}, path=None), "no ScopeDefinition defines its kind"),
        (Server(None), "healthscope.core.oam.dev/shop/health: not found"),
    ],
)
async def test_what_is_not_there_refuses_an_entry_and_holds_nobody_who_leaves(
    server: Server, told: str
) -> None:
    with pytest.raises(NotFound, match=told):
        await reference_scopes(server, WEB, [HEALTH])
    await dereference_scopes(server, WEB, [HEALTH])
    assert server.updates == 0


async def test_who_cannot_be_asked_is_not_taken_for_gone() -> None:
    server = listing(WEB_ITEM)
    server.down = True
    with pytest.raises(Unavailable):
        await dereference_scopes(server, WEB, [HEALTH])
