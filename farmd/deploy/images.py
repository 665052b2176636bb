"""Pins a tag to what the registry serves under it now.

So all machines run the same, and the next deploy sees a change.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
    """Pins images to digests by their pull policy; it asks the registry for each image once.

    * ``always``: the digest that the registry serves under the tag.
    * ``missing``: the digest that machines run under the tag; if none does, as ``always``. ``machines`` are
      the pinned images of their pods, the preferred ones first.
    * ``never``: none, because each machine runs the image that it has.
    """

    client: ImageResolverClient
    machines: Sequence[str] = ()
    _asked: dict[str, asyncio.Task[str]] = field(default_factory=dict)
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def resolve(self, image: str, policy: PullPolicy) -> tuple[str, PullPolicy]:
        """The reference with its digest, and the policy for it.

        A pinned image never changes, so ``always`` means ``missing`` for it: else each deploy would recreate
        all pods.

        Raises:
            InputInvalid: no such reference.
            NoDigest: the digest is unknown.
        """
        if parse(image).digest:
            return image, "missing" if policy == "always" else policy
        if policy == "never":
            raise NoDigest("pull is never, so each machine runs the image that it has")
        if policy == "missing" and (runs := next((one for one in self.machines if _is(one, image)), "")):
            return runs, "missing"
        if image not in self._asked:
            self._asked[image] = asyncio.create_task(self._digest(image))
        return f"{image}@{await self._asked[image]}", "missing"

    async def _digest(self, image: str) -> str:
        async with self._room:
            return await self.client.digest(image)


async def pinned(
    specs: Mapping[str, ServiceSpec], client: ImageResolverClient, standing: Mapping[str, StandingService]
) -> tuple[dict[str, ServiceSpec], list[str]]:
    """The services with pinned images, and warnings for those that are not pinned again.

    ``standing`` has the services as they run now, by name. If no registry answers, an image that runs under
    the same tag stays pinned as it is, because a registry's absence must change no pod.

    Raises:
        InputInvalid: no such reference, or no such image where it is to be pulled in any case.
    """
    resolver = ImageDigestResolver(client)
    asked = (
        _pinned(dataclasses.replace(resolver, machines=_machines(name, standing)), name, spec)
        for name, spec in specs.items()
    )
    found: dict[str, ServiceSpec] = {}
    images: dict[str, list[str]] = {}
    for name, one in zip(specs, await asyncio.gather(*asked, return_exceptions=True), strict=True):
        if isinstance(one, BaseException):
            raise one
        found[name], why = one
        if why:
            images.setdefault(why, []).append(specs[name].container.image)
    return found, [f"{_named(sorted(set(names)))}: {why}" for why, names in images.items()]


async def _pinned(resolver: ImageDigestResolver, name: str, spec: ServiceSpec) -> tuple[ServiceSpec, str]:
    """A service with its image pinned; why it is not, or not again."""
    image, policy, why = spec.container.image, spec.container.pull, ""
    try:
        # A deploy asks the registry even if the policy is ``missing``: otherwise no deploy would bring a
        # newer image of the same tag. What machines run counts only while the registry does not answer.
        image, policy = await resolver.resolve(image, "always" if policy == "missing" else policy)
    except NoDigest as error:
        if error.absent and policy == "always":
            raise InputInvalid(
                f"services.{name}: container.image: {error}, and pull is always", field="container.image"
            ) from error
        why = f"not pinned to a digest: {error}"
        if policy != "never":
            with suppress(NoDigest):
                image, policy = await resolver.resolve(image, "missing")
                why = f"stays at the digest that runs now: {error}"
    return replace(spec, container=replace(spec.container, image=image, pull=policy)), why


def _machines(name: str, standing: Mapping[str, StandingService]) -> list[str]:
    """The pinned images that pods run: those of the service first, and of them those of most pods."""
    own = _images([standing[name]] if name in standing else [])
    return [*own, *_images(standing.values())]


def _images(services: Iterable[StandingService]) -> list[str]:
    pods = (pod for service in services for pod in service.containers)
    counts = Counter(pod.spec.container.image for pod in pods if pod.spec is not None)
    return [image for image, _ in counts.most_common()]


def _is(pinned_image: str, image: str) -> bool:
    """Whether an image is another one with its digest."""
    return pinned_image.startswith(f"{image}@")


def _named(images: Sequence[str]) -> str:
    more = len(images) - NAMED_AT_MOST
    return ", ".join(images[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
