"""Caches manifests; they never change, so a body that was read once stays valid."""

from __future__ import annotations

from store import manifests
from store.consul.client import ConsulClient
from store.errors import NotFound, RecordInvalid
from store.keys import Keys
from store.manifests import Manifest
from store.named import Owner

MANIFESTS_KEPT = 1024


class ManifestCache:
    """Manifests by digest."""

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._known: dict[str, Manifest] = {}

    async def get(self, sha: str) -> Manifest:
        """The manifest with that digest.

        Raises:
            NotFound: it was never written, or it was collected.
            RecordInvalid: its body does not match the digest.
        """
        if sha not in self._known:
            if len(self._known) >= MANIFESTS_KEPT:
                del self._known[next(iter(self._known))]
            self._known[sha] = await manifests.read(self._client, self._keys, sha)
        return self._known[sha]

    async def of(self, owner: Owner) -> Manifest:
        """The manifest of an owner; an owner that is being deleted starts no pod and needs only the pod's id.

        Raises:
            NotFound, RecordInvalid: as ``get``, where the owner shall have pods.
        """
        try:
            return await self.get(owner.manifest)
        except (NotFound, RecordInvalid):
            if not owner.deleting:
                raise
            return Manifest(id=owner.pod_id, command=[])
