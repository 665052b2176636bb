"""Checkpoints of the pods tree, and replay of the audit log on top of the newest one (R25).

With a checkpoint old hours of the audit log can be deleted: the existing pods follow from it and the
later records. Its ``index`` is that of a write made *before* the pods were read, so it includes the
effect of every record up to that index. It may include later records, too; that does no harm, because
the last record of a pod decides, and records are ordered by ModifyIndex and not by a clock.
The pointer ``audit/checkpoint`` is written last and names the only valid checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from store import codec
from store.audit import Audit
from store.entry import Entry
from store.errors import Conflict, RecordInvalid
from store.keys import Keys
from store.pods import PodKey
from store.ports import KeyReader
from store.times import Time

# In base64, and with its fence, a chunk stays a routine transaction of less than 64 KB.
CHUNK_BYTES = 40 * 1024
ATTEMPTS = 3


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint: ``chunks`` parts with ``pods`` pods; it includes all records up to ``index``.

    ``at`` is the time of its start (seconds since the epoch), ``hour`` the UTC hour that holds its parts.
    """

    id: str
    hour: str
    index: int
    chunks: int
    pods: int
    at: Time


class Chunk(msgspec.Struct, frozen=True):
    """One part of a checkpoint: owner → its pods, each ``<node>/<instance>``."""

    pods: dict[str, list[str]]


class Replay(msgspec.Struct, frozen=True):
    """The pods that exist according to the audit log, and the checkpoint that the replay started from."""

    pods: frozenset[PodKey]
    checkpoint: Checkpoint | None


def chunks(pods: Iterable[PodKey], limit: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The values of a checkpoint's parts, each at most ``limit`` bytes; none for no pods."""
    part: dict[str, list[str]] = {}
    size = 0
    for pod in sorted(pods):
        text = f"{pod.node}/{pod.instance}"
        needs = len(text) + 3 + (0 if pod.owner in part else len(pod.owner) + 6)
        if part and size + needs > limit - 16:
            yield codec.encode(Chunk(part))
            part, size = {}, 0
            needs = len(text) + len(pod.owner) + 9
        part.setdefault(pod.owner, []).append(text)
        size += needs
    if part:
        yield codec.encode(Chunk(part))


def replay(base: Iterable[PodKey], records: Mapping[int, Iterable[Audit]]) -> frozenset[PodKey]:
    """The pods after these records, by ModifyIndex, on top of a checkpoint's pods.

    Raises:
        RecordInvalid: a record names a pod in an unknown form.
    """
    pods = set(base)
    for index in sorted(records):
        for record in records[index]:
            pods -= {_pod(record, place) for place in record.removed}
            pods |= {_pod(record, place) for place in record.placed}
    return frozenset(pods)


def _pod(record: Audit, place: str) -> PodKey:
    return _key(place if place.count("/") == 2 else f"{record.id}/{place}", "audit")


def _key(text: str, source: str) -> PodKey:
    parts = text.split("/")
    if len(parts) != 3 or not all(parts):
        raise RecordInvalid(
            f"{source}: found the pod {text!r}, expected <owner>/<node>/<instance>", key=source
        )
    return PodKey(*parts)


async def newest(client: KeyReader, keys: Keys) -> tuple[Checkpoint | None, int]:
    """The valid checkpoint and the index of its pointer; None and 0 before the first checkpoint.

    Raises:
        RecordInvalid: the pointer does not decode.
    """
    entry = await client.read(keys.checkpoint, mode="consistent")
    if entry is None:
        return None, 0
    return codec.decode(Checkpoint, entry.value, entry.key), entry.modify_index


async def replayed(client: KeyReader, keys: Keys) -> Replay:
    """The pods that exist according to the stored audit log.

    The answer may include commits that happen during the read.

    Raises:
        RecordInvalid: a part or a record does not decode, or is missing; there is no answer then.
        Conflict: checkpoints were replaced faster than they could be read.
    """
    for _ in range(ATTEMPTS):
        checkpoint, pointer = await newest(client, keys)
        records = await _records(client, keys, checkpoint.index if checkpoint else 0)
        try:
            base = await _pods(client, keys, checkpoint) if checkpoint else frozenset()
        except RecordInvalid:
            if (await newest(client, keys))[1] == pointer:
                raise
            continue
        # After a newer checkpoint, records that this one needs may have been deleted.
        if (await newest(client, keys))[1] == pointer:
            return Replay(replay(base, records), checkpoint)
    raise Conflict(
        f"{keys.checkpoint}: replaced during each of {ATTEMPTS} attempts to read it", key=keys.checkpoint
    )


async def _pods(client: KeyReader, keys: Keys, checkpoint: Checkpoint) -> frozenset[PodKey]:
    pods: set[PodKey] = set()
    for number in range(checkpoint.chunks):
        key = keys.checkpoint_chunk(checkpoint.hour, checkpoint.id, number)
        entry = await client.read(key, mode="consistent")
        if entry is None:
            raise RecordInvalid(f"{key}: missing, expected {checkpoint.chunks} parts", key=key)
        for owner, places in codec.decode(Chunk, entry.value, key).pods.items():
            pods |= {_key(f"{owner}/{place}", key) for place in places}
    if len(pods) != checkpoint.pods:
        raise RecordInvalid(
            f"{keys.checkpoint}: pods: found {len(pods)}, expected {checkpoint.pods}", key=keys.checkpoint
        )
    return frozenset(pods)


async def _records(client: KeyReader, keys: Keys, after: int) -> dict[int, list[Audit]]:
    prefix = keys.tree("audit")
    hours = await client.keys(prefix, separator="/", mode="consistent")
    found: dict[int, list[Audit]] = {}
    for hour in hours.items:
        if not hour.endswith("/") or (await client.keys(hour, mode="consistent")).index <= after:
            continue
        for raw in (await client.list(hour, mode="consistent")).items:
            if raw.modify_index > after and keys.is_audit_record(raw.key):
                entry = Entry.of(raw)
                record = codec.decode(Audit, entry.value, entry.key)
                found.setdefault(entry.modify_index, []).append(record)
    return found
