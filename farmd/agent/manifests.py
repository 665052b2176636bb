"""Manifests by digest: from memory, from disk, from the store; used only if the digest matches.

With the copies on disk an agent that restarts without the store can restart its workloads, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from farmd.agent.errors import ManifestUnusable
from farmd.agent.state import StateDirectory
from store import codec, manifest_check, manifests, peers
from store.consul.client import ConsulClient
from store.errors import InputInvalid, RecordInvalid
from store.keys import Keys
from store.manifests import Manifest
from store.peers import Peers

_SHA = re.compile(r"[0-9a-f]{64}")


class Manifests:
    """The manifests that this node needs."""

    def __init__(self, client: ConsulClient, keys: Keys, state: StateDirectory) -> None:
        self._client = client
        self._keys = keys
        self._state = state
        self._known: dict[str, Manifest] = {}
        self._peers: set[str] = set()

    def cached(self, sha: str) -> Manifest | None:
        """A manifest from memory or disk; None if it is missing or does not match its digest."""
        found = self._known.get(sha)
        if found is None and _SHA.fullmatch(sha):
            try:
                found = verified(sha, self._state.manifest(sha))
            except (OSError, ManifestUnusable):
                return None
            self._known[sha] = found
        return found

    async def get(self, sha: str) -> Manifest:
        """A manifest, fetched from the store if necessary.

        Raises:
            ManifestUnusable: it is missing, does not match its digest or cannot run on this node.
            StateUnsaved: its copy on disk cannot be written.
            StoreError: the store did not answer.
        """
        if not _SHA.fullmatch(sha):
            raise ManifestUnusable(f"manifest: found {sha[:80]!r}, expected 64 hex digits")
        found = self.cached(sha)
        if found is None:
            body = await self._read(sha, "manifest")
            found = self._known[sha] = verified(sha, body)
            self._state.save_manifest(sha, body)
        return found

    async def fetch_peers(self, sha: str) -> None:
        """Have a copy of a document of peers, which lies where manifests do (R29).

        Raises:
            ManifestUnusable, StateUnsaved, StoreError: as ``get``.
        """
        if not sha or (sha in self._peers and self._state.has_manifest(sha)):
            return
        if not _SHA.fullmatch(sha):
            raise ManifestUnusable(f"peers: found {sha[:80]!r}, expected 64 hex digits")
        if self.peers_here(sha) is None:
            body = await self._read(sha, "peers")
            _check_peers(sha, body)
            self._state.save_manifest(sha, body)
        self._peers.add(sha)

    def peers_here(self, sha: str) -> bytes | None:
        """The copy of a document of peers; None if it is missing or does not match its digest."""
        try:
            body = self._state.manifest(sha)
            _check_peers(sha, body)
        except (OSError, ManifestUnusable):
            return None
        return body

    async def _read(self, sha: str, what: str) -> bytes:
        entry = await self._client.read(self._keys.manifest(sha))
        if entry is None:
            raise ManifestUnusable(f"{what} {sha[:12]}: not in the store", sha=sha)
        return entry.value

    def keep_only(self, needed: Iterable[str]) -> None:
        """Forget every other manifest, in memory and on disk."""
        wanted = set(needed)
        self._known = {sha: manifest for sha, manifest in self._known.items() if sha in wanted}
        self._peers &= wanted
        self._state.keep_manifests(wanted)


def verified(sha: str, body: bytes) -> Manifest:
    """Decode and check a manifest's body.

    Raises:
        ManifestUnusable: too large, does not match its digest, does not decode, or cannot run on this node.
    """
    name = f"manifest {sha[:12]}"
    _check_body(name, sha, body, manifests.MAX_MANIFEST_BYTES)
    try:
        manifest = codec.decode(Manifest, body, name)
        manifest_check.check(manifest, name)
    except (RecordInvalid, InputInvalid) as error:
        raise ManifestUnusable(error.message, sha=sha) from error
    return manifest


def _check_peers(sha: str, body: bytes) -> None:
    """Check a document of peers, as ``verified``."""
    name = f"peers {sha[:12]}"
    _check_body(name, sha, body, peers.MAX_BYTES)
    try:
        codec.decode(Peers, body, name)
    except RecordInvalid as error:
        raise ManifestUnusable(error.message, sha=sha) from error


def _check_body(name: str, sha: str, body: bytes, most: int) -> None:
    if len(body) > most:
        raise ManifestUnusable(f"{name}: found {len(body)} bytes, expected at most {most}", sha=sha)
    found = manifests.digest(body)
    if found != sha:
        raise ManifestUnusable(f"{name}: found a body with digest {found[:12]}, expected {sha[:12]}", sha=sha)
