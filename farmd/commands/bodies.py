"""The manifests that records refer to and that people's files contain.

Each change that refers to a manifest writes it again (R24), even if nothing of the record changes, because it
may be missing or corrupt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farmd.commands import difference
from farmd.commands.mutation import Call
from farmd.commands.specs import Document
from store import manifests
from store.errors import NotFound, RecordInvalid, refuse
from store.manifests import Manifest
from store.named import Record
from store.operations import Operation


def manifest_of(record: Record) -> str:
    """The digest of the manifest of an owner of pods; empty for other records."""
    found: str = getattr(record, "manifest", "")
    return found


@dataclass(frozen=True, slots=True)
class Ensured:
    """The manifests of a document: ``digests`` by the canonical digest of each, and the ``writes`` that store
    them. ``sha`` is the digest of the pod of a document that has one alone.
    """

    digests: Mapping[str, str]
    writes: tuple[Operation, ...]
    sha: str = ""


async def ensured(call: Call, spec: Document, standing: Record | None = None) -> Ensured:
    """The manifests of a document; one that says the same as a manifest of ``standing`` is that one."""
    pod: Manifest | None = getattr(spec, "pod", None)
    pods: tuple[Manifest, ...] = getattr(spec, "pods", ()) if pod is None else (pod,)
    known = [*getattr(standing, "manifests", ())]
    if (reverted := getattr(standing, "reverted", None)) is not None:
        known.append(reverted.manifest)
    found = {
        manifests.digest(manifests.canonical(each)): await manifests.kept(call.client, call.keys, each, known)
        for each in pods
    }
    digests = {sha: manifests.digest(body) for sha, body in found.items()}
    writes = tuple(manifests.ensure(call.keys, body) for body in dict.fromkeys(found.values()))
    return Ensured(digests, writes, next(iter(digests.values())) if pod is not None else "")


def refuse_other_pod(before: Record, wanted: Record) -> None:
    found, expected = getattr(wanted, "pod_id", ""), getattr(before, "pod_id", "")
    if found != expected:
        refuse(f"{wanted.name}: pod.id", repr(found), f"{expected!r}, which its pods bear", field="pod.id")


async def body_lost(call: Call, record: Record) -> bool:
    """Whether the manifest that a record refers to is missing or corrupt, and must be written again."""
    sha = manifest_of(record)
    try:
        if sha:
            await manifests.read_body(call.client, call.keys, sha)
    except (NotFound, RecordInvalid):
        return True
    return False


async def pod_lines(call: Call, record: Record, spec: Document) -> tuple[str, ...]:
    """The fields in which a document's pod differs from the stored manifest, one line each."""
    pod: Manifest | None = getattr(spec, "pod", None)
    if pod is None:
        return ()
    try:
        before = await manifests.read(call.client, call.keys, manifest_of(record))
    except (NotFound, RecordInvalid):
        before = None
    return tuple(difference.manifest_lines(before, pod))
