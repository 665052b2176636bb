"""Labels of pods, nodes and replication controllers, and matches of a selector (p2 ``pkg/labels``).

Labels are a field of the records that they describe, so a change is a compare-and-set on the record,
and keeps fields that this version does not know. An answer without the tree's sentinel does not prove
that nothing matches (R20); an answer with it may be empty.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from store import codec, operations
from store.entry import Entry, RawEntry
from store.errors import NotFound, NotRegistered, RecordInvalid
from store.keys import Keys, is_sentinel
from store.manifests import Manifest
from store.operations import Operation
from store.ports import KeyReader
from store.rcs import ReplicationController
from store.selectors import Selector, valid_labels

RC_ID_LABEL = "replication_controller_id"
POD_ID_LABEL = "pod_id"
CLUSTER_NAME_LABEL = "cluster_name"
AVAILABILITY_ZONE_LABEL = "availability_zone"
RESERVED_LABELS = frozenset({RC_ID_LABEL, POD_ID_LABEL, CLUSTER_NAME_LABEL, AVAILABILITY_ZONE_LABEL})


class LabelType(enum.StrEnum):
    """The types of objects with labels. A pod's id is ``<owner>/<node>/<instance>``, any other's the last
    part of the key."""

    POD = "pod"
    NODE = "node"
    REPLICATION_CONTROLLER = "replication_controller"


_FAMILIES = {LabelType.POD: "pods", LabelType.NODE: "nodes", LabelType.REPLICATION_CONTROLLER: "rcs"}


class Labeled(msgspec.Struct, frozen=True):
    """One object's labels; ``index`` is its record's ModifyIndex, 0 without a record."""

    label_type: LabelType
    id: str
    labels: dict[str, str]
    index: int = 0


class LabelMatcher(Protocol):
    """Finds objects by labels."""

    async def get_matches(self, selector: Selector, label_type: LabelType) -> list[Labeled]:
        """All objects of a type that the selector matches, by id."""


class Labeler(LabelMatcher, Protocol):
    """Reads and changes labels. The ``_txn`` forms return operations and write nothing themselves."""

    async def get_labels(self, label_type: LabelType, item_id: str) -> Labeled:
        """Labels of one object; none if the object does not exist."""

    async def set_labels_txn(
        self, label_type: LabelType, item_id: str, labels: Mapping[str, str]
    ) -> list[Operation]:
        """Operations that add or replace these labels, valid for the record as it was read."""

    async def remove_labels_txn(
        self, label_type: LabelType, item_id: str, keys: Iterable[str]
    ) -> list[Operation]:
        """Operations that remove these labels, valid for the record as it was read."""


def pod_labels(rc: ReplicationController, manifest: Manifest) -> dict[str, str]:
    """Labels of a pod that an RC places: those of the RC's record; the reserved labels override them."""
    return {**rc.pod_labels, POD_ID_LABEL: manifest.id, RC_ID_LABEL: rc.id}


class _Labels(msgspec.Struct):
    """The field of a record that is read here; the other fields need not decode."""

    labels: dict[str, str] = {}


class StoreLabeler:
    """A ``Labeler`` that reads and changes the records.

    ``cluster`` is the id that the sentinels must have; empty accepts any.
    """

    def __init__(self, store: KeyReader, keys: Keys, *, cluster: str = "") -> None:
        self._store = store
        self._keys = keys
        self._cluster = cluster

    async def get_labels(self, label_type: LabelType, item_id: str) -> Labeled:
        """Labels of one object; none if the object does not exist.

        Raises:
            RecordInvalid: the record does not decode.
        """
        entry = await self._store.read(self._key(label_type, item_id))
        if entry is None:
            return Labeled(label_type, item_id, {})
        return Labeled(label_type, item_id, _labels(entry), entry.modify_index)

    async def get_matches(self, selector: Selector, label_type: LabelType) -> list[Labeled]:
        """All objects of a type that the selector matches, by id. Reads the whole tree.

        Raises:
            NotRegistered: the tree has no sentinel, or another cluster's, so the answer proves nothing.
            RecordInvalid: a record does not decode; without it the answer would be wrong.
        """
        tree = self._keys.tree(_FAMILIES[label_type])
        page = await self._store.list(tree)
        self._check_sentinel(tree, page.items)
        found = []
        for raw in page.items:
            if is_sentinel(raw.key):
                continue
            labels = _labels(Entry.of(raw))
            if selector.matches(labels):
                found.append(Labeled(label_type, raw.key[len(tree) :], labels, raw.modify_index))
        return found

    async def set_labels_txn(
        self, label_type: LabelType, item_id: str, labels: Mapping[str, str]
    ) -> list[Operation]:
        """Operations that add or replace these labels; none for no labels.

        Raises:
            InputInvalid: a key or a value that no label can have.
            NotFound: the pod or RC does not exist. A missing node's record is created.
        """
        valid_labels(labels, "labels")
        if not labels:
            return []
        entry = await self._entry(label_type, item_id)
        return [_cas(entry, {**_labels(entry), **labels})]

    async def remove_labels_txn(
        self, label_type: LabelType, item_id: str, keys: Iterable[str]
    ) -> list[Operation]:
        """Operations that remove these labels; none if the object has none of them."""
        entry = await self._store.read(self._key(label_type, item_id))
        if entry is None:
            return []
        before = _labels(entry)
        gone = before.keys() & set(keys)
        return [_cas(entry, {k: v for k, v in before.items() if k not in gone})] if gone else []

    async def _entry(self, label_type: LabelType, item_id: str) -> Entry:
        key = self._key(label_type, item_id)
        entry = await self._store.read(key)
        if entry is not None:
            return entry
        if label_type is LabelType.NODE:
            return Entry(key, b"{}", 0)
        raise NotFound(f"{label_type} {item_id}: not found", kind=label_type.value, id=item_id)

    def _key(self, label_type: LabelType, item_id: str) -> str:
        return self._keys.tree(_FAMILIES[label_type]) + item_id

    def _check_sentinel(self, tree: str, items: list[RawEntry]) -> None:
        sentinel = self._keys.sentinel(tree)
        entry = next((raw for raw in items if raw.key == sentinel), None)
        if entry is None:
            raise NotRegistered(f"{tree}: found no sentinel, expected {sentinel}", tree=tree)
        found = codec.decode(str, entry.decoded(), sentinel)
        if self._cluster and found != self._cluster:
            raise NotRegistered(
                f"{tree}: found cluster {found!r}, expected {self._cluster!r}", tree=tree, found=found
            )


def _labels(entry: Entry) -> dict[str, str]:
    return codec.decode(_Labels, entry.value, entry.key).labels


def _cas(entry: Entry, labels: dict[str, str]) -> Operation:
    """Replace the labels in a record's JSON and leave every other field as it is."""
    try:
        fields = msgspec.json.decode(entry.value, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise RecordInvalid(f"{entry.key}: {error}", key=entry.key) from error
    fields.pop("labels", None)
    if labels:
        fields["labels"] = msgspec.Raw(codec.encode(labels))
    return operations.cas(entry.key, codec.encode(fields), entry.modify_index, flags=entry.flags)
