"""Compares a record that exists with the one that a person asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from farmd.commands.mutation import Call, Scalar
from farmd.commands.specs import Document
from store import config, manifests
from store.canonical import builtins, canonical
from store.errors import NotFound, RecordInvalid, refuse
from store.manifests import Manifest
from store.named import Record
from store.operations import Operation
from store.words import amount_text

# Fields that no file contains.
_IDENTITY = {"id", "name", "created", "deleting", "restart", "managed_by", "taken", "hands", "numbered"}
_IDENTITY |= {"part_of", "open", "last"}
_SECRET = {"env"}
_INPUTS = {"env", "files"}
_SHORT = 80


def scalar(value: Any) -> Scalar:
    """A field's value as one short scalar, for people and the audit."""
    if isinstance(value, int | str | bool):
        return value
    if isinstance(value, Mapping):
        told = _without_values(value)
        return ",".join(f"{key}={_plain(told[key])}" for key in sorted(told))
    if isinstance(value, list):
        return ",".join(_plain(_without_values(item)) for item in value)
    if isinstance(value, msgspec.Struct):
        env = getattr(value, "env", {})  # of a hook: names are told, values never
        told = msgspec.structs.replace(value, env=dict.fromkeys(env, "…")) if env else value
        return msgspec.json.encode(canonical(told)).decode()
    return "none" if value is None else str(value)


def _plain(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return str(scalar(value))
    return msgspec.json.encode(value).decode() if isinstance(value, Mapping | list) else str(value)


def _without_values(value: Any) -> Any:
    """A document in a record, such as a schedule's job, without the values of variables and files."""
    if isinstance(value, Mapping):
        return {
            name: _hidden(item)
            if name in _INPUTS
            else _digests(item)
            if name == "sealed"
            else _without_values(item)
            for name, item in value.items()
        }
    return [_without_values(item) for item in value] if isinstance(value, list) else value


def _digests(sealed: Any) -> Any:
    """Sealed secrets by name, each with a digest that differs between ciphertexts."""
    found = sealed.items() if isinstance(sealed, Mapping) else ()
    return {name: hashlib.sha256(repr(each).encode()).hexdigest()[:12] for name, each in found}


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict.fromkeys(value, "…")
    return [_hidden(item) for item in value] if isinstance(value, list) else "…"


def word(value: object) -> str:
    """A field's scalar value in a message."""
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def lines(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """``replicas 3 -> 5`` for each field that changed, ``labels.rack removed`` for a removed one."""
    gone = [f"{name} removed" for name in before if name not in after]
    return gone + [
        f"{name} {word(before[name])} -> {word(value)}" if name in before else f"{name} {word(value)}"
        for name, value in after.items()
    ]


def fields(
    before: object, after: object, names: Mapping[str, str]
) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """The fields of a record that differ, before and after, under the names that files use.

    ``names`` are file names of fields that have another name in records. A manifest is shown as the first 12
    digits of its digest.
    """
    assert isinstance(before, msgspec.Struct)
    assert isinstance(after, msgspec.Struct)
    told = {"manifest": "pod"} | {record: file for file, record in names.items()}
    old, new = _flat(before), _flat(after)
    names_of_both = dict.fromkeys([*new, *old])
    changed = [name for name in names_of_both if name not in _IDENTITY and old.get(name) != new.get(name)]

    def shown(record: dict[str, Any]) -> dict[str, Scalar]:
        found = {}
        for name in changed:
            within, dot, last = name.rpartition(".")
            value = record.get(name, "")
            found[within + dot + told.get(last, last)] = value[:12] if last == "manifest" else scalar(value)
        return found

    return shown(old), shown(new)


def _flat(record: msgspec.Struct) -> dict[str, Any]:
    """The fields of a record; those of records in a list by their place: ``types[0].replicas``."""
    found: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(record).items():
        if isinstance(value, list) and value and all(isinstance(each, msgspec.Struct) for each in value):
            for at, each in enumerate(value):
                found |= {f"{name}[{at}].{inner}": text for inner, text in _flat(each).items()}
        else:
            found[name] = value
    return found


def manifest_lines(before: Manifest | None, after: Manifest) -> list[str]:
    """One line for each top-level field of the pod that differs; never a value of the environment."""
    if before is None:
        return ["pod: the manifest that it has now cannot be read"]
    old, new = builtins(before), builtins(after)
    lines = []
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            continue
        if name == "resources":
            lines.append(f"pod.{name}: {_amounts(old.get(name))} -> {_amounts(new.get(name))}")
        elif name == "artifacts":
            lines += _artifact_lines(before, after)
        elif name == "sources":
            lines += _source_lines(before, after)
        elif name == "secret_env":
            lines += _secret_lines(before, after)
        elif name == "sealed":
            lines += _sealed_lines(before, after)
        elif name in _SECRET:
            lines.append(f"pod.{name}: {_changed_keys(old.get(name, {}), new.get(name, {}))}")
        else:
            lines.append(f"pod.{name}: {_around(_text(old.get(name)), _text(new.get(name)))}")
    return lines


def _artifact_lines(before: Manifest, after: Manifest) -> Iterator[str]:
    """A line for each path with other content, with the whole address: it may be what matters."""
    old, new = ({each.to: each for each in manifest.artifacts} for manifest in (before, after))
    for to in sorted({*old, *new}):
        if old.get(to) != new.get(to):
            words = [found[to].told if to in found else "(none)" for found in (old, new)]
            other = " with another query" if words[0] == words[1] else ""
            yield f"pod.artifacts {to}: {words[0]} -> {words[1]}{other}"


def _secret_lines(before: Manifest, after: Manifest) -> Iterator[str]:
    """A line for each variable that gets another secret, or another version of one."""
    old, new = before.secret_env, after.secret_env
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"pod.env.{name}: secret {old.get(name, '(none)')} -> {new.get(name, '(none)')}"


def _sealed_lines(before: Manifest, after: Manifest) -> Iterator[str]:
    """A line for each version that is sealed again; the fields show where another version is used."""
    for name in sorted(before.sealed.keys() & after.sealed.keys()):
        old, new = before.sealed[name], after.sealed[name]
        if old.body != new.body:
            counts = f"{len(old.recipients)} -> {len(new.recipients)} recipients"
            yield f"pod.sealed.{name}: sealed again, {counts} of group {new.group}"
        elif old != new:
            yield f"pod.sealed.{name}: {'pinned' if new.pinned else 'not pinned'}"


def _source_lines(before: Manifest, after: Manifest) -> Iterator[str]:
    """A line for each field whose value comes from another config key, or is another version of its key."""
    old, new = ({each.field: each for each in manifest.sources} for manifest in (before, after))
    for field in sorted({*old, *new}):
        was, now = old.get(field), new.get(field)
        if now is None:
            yield f"pod.{field}: no longer from {config.told(old[field].kv)}"
        elif was is None or was.kv != now.kv:
            yield f"pod.{field}: from {now.told}"
        elif was.version != now.version and _value(before, field) != _value(after, field):
            yield f"pod.{field}: from {was.told} -> {now.version}"


def _value(manifest: Manifest, field: str) -> str | None:
    """The value of a field that a reference names."""
    if field.startswith("env."):
        return manifest.env.get(field.removeprefix("env."))
    files = {f"files[{at}]": file.content for at, file in enumerate(manifest.files)}
    files |= {f"files[{at}].template": file.template for at, file in enumerate(manifest.files)}
    return files.get(field)


def _amounts(said: dict[str, float] | None) -> str:
    told = (
        f"{resource} {amount_text(amount, exact=True)}" for resource, amount in sorted((said or {}).items())
    )
    return ", ".join(told) or "(default)"


def _changed_keys(old: dict[str, str], new: dict[str, str]) -> str:
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return "changes " + ", ".join(keys)


def _text(value: Any) -> str:
    return "(default)" if value is None else msgspec.json.encode(value).decode()


def _around(old: str, new: str) -> str:
    """``OLD -> NEW``; a long text is cut to the part where the two begin to differ."""
    if max(len(old), len(new)) <= _SHORT:
        return f"{old} -> {new}"
    start = max(0, _common(old, new) - _SHORT // 4)
    return f"{_cut(old, start)} -> {_cut(new, start)}"


def _common(old: str, new: str) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((position for position, (one, other) in pairs if one != other), min(len(old), len(new)))


def _cut(text: str, start: int) -> str:
    head, tail = "..." if start else "", "..." if start + _SHORT < len(text) else ""
    return f"{head}{text[start : start + _SHORT]}{tail}"


# The manifests that records refer to and that people's files contain.
#
# Each change that refers to a manifest writes it again (R24), even if nothing of the record changes,
# because it may be missing or corrupt.


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
    """The manifests of a document; one that equals a manifest of ``standing`` keeps its digest."""
    pod: Manifest | None = getattr(spec, "pod", None)
    pods: tuple[Manifest, ...] = getattr(spec, "pods", ()) if pod is None else (pod,)
    known = [*getattr(standing, "manifests", ())]
    if (reverted := getattr(standing, "reverted", None)) is not None:
        known.append(reverted.manifest)
    found = dict[str, bytes]()
    for each in pods:
        body = manifests.canonical(each)
        kept = await manifests.kept(call.client, call.keys, each, known) if known else body
        found[manifests.digest(body)] = kept
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
    return tuple(manifest_lines(before, pod))
