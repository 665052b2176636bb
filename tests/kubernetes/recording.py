"""Every version of every object of some kinds in a namespace, in the API server's own order.

    async with recording(transport, namespace) as recorded:
        ...
    assert not mistakes(recorded)  # tests/kubernetes/rollout_rules.py

All kinds lie in one etcd, so versions of different kinds are in one order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from farmd.kubernetes.errors import Unavailable
from farmd.kubernetes.knative.objects import MANAGER, MAX_SCALE, MIN_SCALE, ORCHESTRATORS, REVISIONS, ROUTES
from farmd.kubernetes.objects import PODS, Resource, managers_of
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.rollout.staging import REVISION_LABEL
from tests.kubernetes.knative_rules import bounds
from tests.kubernetes.knative_world import WATCHED, Thing

Key = tuple[Resource, str]
T = TypeVar("T")
World = Mapping[Key, Thing]
WATCH_SECONDS = 600.0


@dataclass(frozen=True)
class Version:
    """One version of one object; ``after`` is None once it is gone. ``world`` is everything just before it.

    ``finals``: the least and the most pods of each revision as its template or a person had them.
    """

    at: int
    kind: Resource
    name: str
    after: Thing | None
    world: World = field(default_factory=dict)
    finals: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def before(self) -> Thing | None:
        """The version before this one."""
        return self.world.get((self.kind, self.name))


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Listed(msgspec.Struct, rename="camel"):
    resource_version: str


class _Page(msgspec.Struct):
    metadata: _Listed


@dataclass
class Recording:
    """What was seen since its start, when the namespace held nothing."""

    versions: list[Version] = field(default_factory=list)

    def history(self) -> Iterator[Version]:
        """Each version with the world just before it, in order."""
        world: dict[Key, Thing] = {}
        finals: dict[str, tuple[int, int]] = {}
        for each in sorted(self.versions, key=lambda version: version.at):
            if each.kind == REVISIONS and each.after is not None and not ours(each.after):
                finals[each.name] = bounds(each.after.metadata.annotations, reachable=True)
            yield Version(each.at, each.kind, each.name, each.after, dict(world), dict(finals))
            if each.after is None:
                world.pop((each.kind, each.name), None)
            else:
                world[each.kind, each.name] = each.after

    def of(self, kind: Resource, name: str) -> Iterator[Thing]:
        """The versions of one object."""
        for each in sorted(self.versions, key=lambda version: version.at):
            if (each.kind, each.name) == (kind, name) and each.after is not None:
                yield each.after

    def last(self) -> int:
        """The newest version of all."""
        return max(each.at for each in self.versions)

    def stages(self, name: str) -> list[str]:
        """The stages of a rollout as its record had them: ``75/3→25/1``, in percent and pods."""
        told = (each.spec.get("stageTargetRevisions") or () for each in self.of(ORCHESTRATORS, name))
        return changes(
            "→".join(f"{each.get('percent', 'nil')}/{each.get('targetReplicas', 'nil')}" for each in entries)
            for entries in told
        )

    def shares(self, name: str) -> list[dict[str, int]]:
        """The traffic of a route, as it changed."""
        return changes(shares_of(each) for each in self.of(ROUTES, name))

    def bounds(self, revision: str, kind: Resource = REVISIONS) -> list[tuple[int, int]]:
        """The least and the most pods of a revision, as they changed."""
        return changes(bounds(each.metadata.annotations, reachable=True) for each in self.of(kind, revision))

    def peak(self) -> int:
        """The most pods at once, those that end included."""
        return max((len(pods_of(each.world)) for each in self.history()), default=0)


def changes(found: Iterator[T]) -> list[T]:
    """The values that differ from the one before, without empty ones."""
    kept: list[T] = []
    for each in found:
        if each and each not in kept[-1:]:
            kept.append(each)
    return kept


def shares_of(route: Thing | None) -> dict[str, int]:
    """The share of each revision by a route's status; one with a tag may have an entry for that besides."""
    found = dict[str, int]()
    for each in route.status.get("traffic", ()) if route is not None else ():
        found[each["revisionName"]] = found.get(each["revisionName"], 0) + each.get("percent", 0)
    return found


def pods_of(world: World, revision: str = "") -> list[Thing]:
    """The pods of a revision, or all, those that end included."""
    pods = (each for (kind, _), each in world.items() if kind == PODS)
    return [each for each in pods if revision in ("", each.metadata.labels.get(REVISION_LABEL))]


def ours(bearer: Thing) -> bool:
    """Whether bounds of a revision or of its autoscaler are farmd's."""
    keys = [key for key in (MIN_SCALE, MAX_SCALE) if key in bearer.metadata.annotations]
    return any(
        entry.manager == MANAGER
        for key in keys
        for entry in managers_of(bearer.metadata, "metadata", "annotations", key)
    )


@asynccontextmanager
async def recording(
    transport: KubernetesTransport, namespace: str, kinds: Sequence[Resource] = WATCHED
) -> AsyncIterator[Recording]:
    """Watch these kinds in a namespace that holds none of their objects; a watch that fell fails the test."""
    found = Recording()
    starts = [await _start(transport, kind, namespace) for kind in kinds]
    tasks = [
        asyncio.create_task(_watch(transport, kind, namespace, start, found))
        for kind, start in zip(kinds, starts, strict=True)
    ]
    try:
        yield found
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _start(transport: KubernetesTransport, kind: Resource, namespace: str) -> str:
    page = await transport.send(ApiRequest("GET", kind.path(namespace), (("limit", "1"),)))
    return msgspec.json.decode(page, type=_Page).metadata.resource_version


async def _watch(
    transport: KubernetesTransport, kind: Resource, namespace: str, start: str, found: Recording
) -> None:
    """Enter each version; a watch that ends goes on where it was."""
    last = start
    while True:
        params = (("watch", "1"), ("resourceVersion", last))
        with suppress(Unavailable):
            async with transport.watch(
                ApiRequest("GET", kind.path(namespace), params), WATCH_SECONDS
            ) as lines:
                async for line in lines:
                    event = msgspec.json.decode(line, type=_Line)
                    assert event.type in ("ADDED", "MODIFIED", "DELETED"), line
                    thing = msgspec.json.decode(event.object, type=Thing)
                    last = thing.metadata.resource_version
                    after = None if event.type == "DELETED" else thing
                    found.versions.append(Version(int(last), kind, thing.name, after))
