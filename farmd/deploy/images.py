"""Pins a tag to what the registry serves under it now.

So all machines run the same, and the next deploy sees a change.
"""

from __future__ import annotations

from dataclasses import dataclass

from farmd.deploy.model import PullPolicy
from farmd.deploy.ports import ImageResolverClient
from store.images import parse


@dataclass(frozen=True, slots=True)
class ImageDigestResolver:
    """Pins images to the digests that their registries serve."""

    client: ImageResolverClient

    async def resolve(self, image: str, policy: PullPolicy) -> tuple[str, PullPolicy]:
        """The reference with its digest, and the policy for it; unpinned where nobody knows the digest.

        A pinned image never changes, so ``always`` means ``missing`` for it: else each deploy would recreate
        all pods.

        Raises:
            InputInvalid: no such reference.
        """
        reference = parse(image)
        if reference.digest:
            return image, "missing" if policy == "always" else policy
        digest = await self.client.digest(image) if policy != "never" else None
        return (f"{image}@{digest}", "missing") if digest else (image, policy)
