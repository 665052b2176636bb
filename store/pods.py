"""Pods: who owns what. ``pods/<owner>/<node>/<instance>``, owner first, so that "my pods" is one read."""

from __future__ import annotations

import sys
from typing import Protocol

import msgspec

from store import codec
from store.entry import Entry, Page, RawEntry, Stored
from store.errors import NotRegistered
from store.keys import Keys


class Pod(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One pod of an owner: its labels and the digest of the manifest that it should run.

    ``at`` is when it was placed (seconds since the epoch): removal takes the newest first.
    """

    manifest: str
    labels: dict[str, str] = {}
    at: float = 0.0


class PodKey(msgspec.Struct, frozen=True, order=True):
    """Where a pod stands; ``owner`` is ``<id>`` of its controller."""

    owner: str
    node: str
    instance: str


class Reader(Protocol):
    """What is needed of ``store.consul.client.ConsulClient``."""

    async def read(self, key: str, /) -> Entry | None:
        """One key."""

    async def list(self, prefix: str, /) -> Page[RawEntry]:
        """One tree."""


async def current_pods(owner: str, client: Reader, keys: Keys) -> dict[PodKey, Stored[Pod]]:
    """All pods of one owner, in the order of their keys (p2 ``CurrentPods``); one short prefix read.

    Raises:
        NotRegistered: nothing was found and the pods tree has no sentinel: that proves no absence (R20).
        RecordInvalid: a record does not decode; leaving it out would pass for its absence.
    """
    page = await client.list(keys.pods(owner))
    if not page.items:
        sentinel = keys.sentinel(keys.tree("pods"))
        if await client.read(sentinel) is None:
            raise NotRegistered(f"pods of {owner}: found no sentinel, expected {sentinel}", owner=owner)
    found = {}
    for raw in page.items:
        found[PodKey(*keys.pod_parts(raw.key))] = codec.stored(Pod, Entry.of(raw))
    return found


class SharedLabels:
    """Keeps one copy of equal labels for the pods of a manifest: they nearly always are equal."""

    LIMIT = 20_000

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def shared(self, pod: Pod) -> Pod:
        """The same pod with its strings and labels shared."""
        sha = sys.intern(pod.manifest)
        labels = self._known.get(sha)
        if labels != pod.labels:
            if len(self._known) >= self.LIMIT:
                self._known.clear()
            labels = self._known[sha] = pod.labels
        return Pod(sha, labels, pod.at)
