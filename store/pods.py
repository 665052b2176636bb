"""Pods by owner: ``pods/<owner>/<node>/<instance>``, owner first, so that one read finds all its pods."""

from __future__ import annotations

import sys

import msgspec

from store import codec
from store.entry import Entry, Stored
from store.errors import NotRegistered
from store.keys import Keys
from store.ports import KeyReader
from store.times import Time

Place = tuple[str, str]
"""Where a pod stands: its node and its instance."""


class Pod(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One pod of an owner: its labels and the digest of the manifest that it should run.

    ``at`` is when it was placed (seconds since the epoch): removal takes the newest first.
    ``done``: it ended for good, and keeps its place only for its log. It reserves nothing, and placement
    counts it nowhere (R29). One without an intent ended well: it counts for its owner, and never runs again.
    """

    manifest: str
    labels: dict[str, str] = {}
    at: Time = 0.0
    done: bool = False


class PodKey(msgspec.Struct, frozen=True, order=True):
    """The place of a pod; ``owner`` is the id of the record that owns it."""

    owner: str
    node: str
    instance: str


async def current_pods(owner: str, client: KeyReader, keys: Keys) -> dict[PodKey, Stored[Pod]]:
    """All pods of one owner, in the order of their keys (p2 ``CurrentPods``); one short prefix read.

    Raises:
        NotRegistered: there are no pods, and without the tree's sentinel that proves no absence (R20).
        RecordInvalid: a record does not decode; without it the answer would be wrong.
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
    """Keeps one copy of the labels of a manifest's pods, which are nearly always equal."""

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
            # The values are ids and names, which the records of the pods' owners hold, too.
            labels = self._known[sha] = {name: sys.intern(value) for name, value in pod.labels.items()}
        return Pod(sha, labels, pod.at, pod.done)
