"""One list in place of many reads: what it proves, and when each object is read all the same."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from farmd.kubernetes.apps.facts import CROWD, MANY, absent
from farmd.kubernetes.errors import Forbidden, KubernetesError
from farmd.kubernetes.objects import Resource
from store.apps import TypedReference

MAPS = Resource("", "v1", "configmaps", "ConfigMap")


class _Watching:
    """Shows these names as the app's own, and lists those, or fails."""

    def __init__(self, listed: Collection[str] | KubernetesError | None, shown: Collection[str] = ()) -> None:
        self.listed, self.shown = listed, shown
        self.asked = list[tuple[str, int]]()

    def version(self, resource: Resource, ref: TypedReference) -> str:
        return "7" if ref.name in self.shown else ""

    async def names(self, resource: Resource, namespace: str, most: int) -> Collection[str] | None:
        self.asked.append((namespace, most))
        if isinstance(self.listed, KubernetesError):
            raise self.listed
        return self.listed


def refs(count: int, namespace: str = "shop") -> list[TypedReference]:
    names = (f"c{number:02}" for number in range(count))
    return [
        TypedReference(api_version="v1", kind="ConfigMap", namespace=namespace, name=name) for name in names
    ]


async def found(watching: Any, asked: list[TypedReference], resource: Resource | None = MAPS) -> set[str]:
    async def of(ref: TypedReference) -> Resource | None:
        return resource

    return await absent(asked, of, watching)


async def test_what_a_whole_list_lacks_does_not_exist_and_what_it_has_is_read() -> None:
    watching = _Watching({"c03", "another"})
    assert await found(watching, refs(MANY)) == {str(ref) for ref in refs(MANY) if ref.name != "c03"}
    assert watching.asked == [("shop", CROWD * MANY)]


async def test_few_objects_of_each_namespace_are_read_without_a_list() -> None:
    watching = _Watching(())
    assert await found(watching, [*refs(MANY - 1), *refs(MANY - 1, "other")]) == set()
    assert watching.asked == []


async def test_what_the_watch_shows_exists_and_counts_for_no_list() -> None:
    watching = _Watching((), shown={"c00"})
    assert await found(watching, refs(MANY)) == set()
    assert await found(watching, refs(MANY + 1)) == {str(ref) for ref in refs(MANY + 1)[1:]}


@pytest.mark.parametrize("listed", [None, Forbidden("cannot list", status=403)])
async def test_a_list_that_is_not_whole_or_refused_proves_nothing(listed: KubernetesError | None) -> None:
    assert await found(_Watching(listed), refs(MANY)) == set()


async def test_objects_of_a_kind_that_the_server_lacks_are_read() -> None:
    watching = _Watching(())
    assert await found(watching, refs(MANY), None) == set()
    assert watching.asked == []
