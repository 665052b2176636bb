"""Pins a tag to what the registry serves under it now.

So all machines run the same, and the next deploy sees a change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from farmd.deploy.operations import StandingService
from farmd.deploy.protocols import ImageResolverClient, NoDigest
from farmd.deploy.spec import PullPolicy, ServiceSpec
from store.errors import InputInvalid
from store.images import parse

AT_ONCE = 8
NAMED_AT_MOST = 3


@dataclass(frozen=True, slots=True)
class ImageDigestResolver:
    """Pins images to the digests that their registries serve; it asks for each image once."""

    client: ImageResolverClient
    _asked: dict[str, asyncio.Task[str]] = field(default_factory=dict)
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def resolve(self, image: str, policy: PullPolicy) -> tuple[str, PullPolicy]:
        """The reference with its digest, and the policy for it.

        A pinned image never changes, so ``always`` means ``missing`` for it: else each deploy would recreate
        all pods.

        Raises:
            InputInvalid: no such reference.
            NoDigest: nobody knows the digest.
        """
        if parse(image).digest:
            return image, "missing" if policy == "always" else policy
        if policy == "never":
            raise NoDigest("pull is never, so each machine runs the image that it has")
        if image not in self._asked:
            self._asked[image] = asyncio.create_task(self._digest(image))
        return f"{image}@{await self._asked[image]}", "missing"

    async def _digest(self, image: str) -> str:
        async with self._room:
            return await self.client.digest(image)


async def pinned(
    specs: Mapping[str, ServiceSpec], client: ImageResolverClient, standing: Mapping[str, StandingService]
) -> tuple[dict[str, ServiceSpec], list[str]]:
    """The services with pinned images, and warnings for those that are not, or not anew.

    Where no registry answers, an image that runs now under the same tag stays pinned as it is, because a
    registry's absence must change no pod.

    Raises:
        InputInvalid: no such reference, or no such image where it is to be pulled in any case.
    """
    resolver = ImageDigestResolver(client)
    asked = (_pinned(resolver, name, spec, standing.get(name)) for name, spec in specs.items())
    found: dict[str, ServiceSpec] = {}
    images: dict[str, list[str]] = {}
    for name, one in zip(specs, await asyncio.gather(*asked, return_exceptions=True), strict=True):
        if isinstance(one, BaseException):
            raise one
        found[name], why = one
        if why:
            images.setdefault(why, []).append(specs[name].container.image)
    return found, [f"{_named(sorted(set(names)))}: {why}" for why, names in images.items()]


async def _pinned(
    resolver: ImageDigestResolver, name: str, spec: ServiceSpec, standing: StandingService | None
) -> tuple[ServiceSpec, str]:
    """A service with its image pinned; why it is not, or not anew."""
    image, policy, why = spec.container.image, spec.container.pull, ""
    try:
        image, policy = await resolver.resolve(image, policy)
    except NoDigest as error:
        if error.absent and policy == "always":
            raise InputInvalid(
                f"services.{name}: container.image: {error}, and pull is always", field="container.image"
            ) from error
        if policy != "never" and (runs := _runs(image, standing)):
            image, policy, why = runs, "missing", f"stays at the digest that runs now: {error}"
        else:
            why = f"not pinned to a digest: {error}"
    return replace(spec, container=replace(spec.container, image=image, pull=policy)), why


def _runs(image: str, standing: StandingService | None) -> str:
    """The pinned image that most pods of a service run under this tag; empty if none does."""
    pods = standing.containers if standing is not None else ()
    images = Counter(pod.spec.container.image for pod in pods if pod.spec is not None)
    return next((found for found, _ in images.most_common() if found.startswith(f"{image}@")), "")


def _named(images: Sequence[str]) -> str:
    more = len(images) - NAMED_AT_MOST
    return ", ".join(images[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
