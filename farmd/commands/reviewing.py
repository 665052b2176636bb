"""What a person sees before signing a manifest of the store: the difference to what this key signed last.

Whoever can write the store chooses what lies there, so nothing of it is signed unseen. It is compared with
what the very key signed that signs now, because anybody can make other signatures. A manifest is shown as it
is stored, with fields that this version does not know, and with the values of its environment.
"""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from farmd.commands.mutation import Call
from farmd.commands.signing import Start
from store import manifests, signatures
from store.errors import NotFound
from store.named import sifted
from store.revocations import Revoked
from store.signatures import Signature
from store.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Review:
    """``lines`` for the person who signs ``start``. ``known``: this key has signed exactly this before."""

    start: Start
    head: str
    lines: tuple[str, ...] = ()
    known: bool = False


async def review(
    call: Call,
    public: str,
    start: Start,
    revoked: Revoked,
    bodies: Mapping[str, bytes],
    shown: Callable[[Mapping[str, Any]], str],
) -> Review:
    """Compare a manifest with the last one that the public key signed for its owner.

    ``bodies`` are those that are not stored yet, by digest; ``shown`` makes YAML of one.

    Raises:
        NotFound: the manifest is gone. RecordInvalid: its body is not what its digest names.
    """
    what, before = f"manifest {start.digest[:12]} for {start.owner}", await _signed(call, public, start)
    same = [each for each in before if each.statement.digest == start.digest]
    if any(not revoked.covers(each.statement) for each in same):
        return Review(start, f"{what}: this key signed it before", known=True)
    body = bodies.get(start.digest) or await manifests.read_body(call.client, call.keys, start.digest)
    new = shown(_readable(body)).splitlines()
    why = ": its signatures were revoked" if same else ""
    for each in sorted(before, key=lambda one: one.statement.begins, reverse=True):
        said = each.statement
        try:
            old = await manifests.read_body(call.client, call.keys, said.digest)
        except NotFound:
            continue
        if said.digest != start.digest:
            head = f"{what}{why}, and what differs from {said.digest[:12]}, which this key signed at"
            lines = difflib.unified_diff(shown(_readable(old)).splitlines(), new, lineterm="", n=3)
            return Review(start, f"{head} {rfc3339(said.begins)}:", tuple(lines)[2:])
    return Review(start, f"{what}{why}; this key signed no other one that is there still:", tuple(new))


def _readable(body: bytes) -> Any:
    """A manifest with the digests of its sealed secrets in place of their ciphertext."""
    manifest = msgspec.json.decode(body)
    sealed = manifest.get("sealed") if isinstance(manifest, dict) else None
    for each in sealed.values() if isinstance(sealed, dict) else ():
        if isinstance(each, dict) and isinstance(text := each.get("body"), str):
            each["body"] = f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"
    return manifest


async def _signed(call: Call, public: str, start: Start) -> list[Signature]:
    """The genuine signatures of a key for an owner."""
    from farmd.signing import keys as signing

    page = await call.client.list(call.keys.tree(signatures.KIND), mode="consistent")
    found, _ = sifted(page.items, lambda entry: signatures.decode(call.keys, entry))
    return [
        each
        for each in found
        if each.key == public
        and signatures.covers(each.statement.owner, start.owner)
        and signing.genuine(each)
    ]
