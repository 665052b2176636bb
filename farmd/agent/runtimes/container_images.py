"""Removes images that this agent pulled, once nothing on its node has needed them for long.

What must never break: an image that somebody else brought is left alone, and so is one that a pod needs or
that was the last good one before it, because a rollback must not depend on a registry. Where the list of what
was pulled is lost, nothing is removed.
"""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from farmd.agent.runtimes.engine import Engine, EngineLacks, EngineRefused
from farmd.agent.state import StateDirectory
from store import codec, images
from store.errors import RecordInvalid
from store.manifests import Manifest
from store.ports import Clock, Recorder
from store.times import Time

log = structlog.get_logger()

LOOK_SECONDS = 600.0
HOUR = 3600.0
LEAST_FREE = 0.1
"""Of the engine's disk; with less, images that nothing needs go after an hour."""
GOOD_KEPT = 2


class Pulled(msgspec.Struct, omit_defaults=True):
    """``images``: when each image that the agent pulled was needed last. ``good``: the images of a pod's id
    that were healthy, the last one first.
    """

    images: dict[str, Time] = {}
    good: dict[str, list[str]] = {}


class Images:
    """The images of one agent; ``retention`` is in seconds, 0: none is removed."""

    def __init__(
        self, engine: Engine, state: StateDirectory, retention: float, clock: Clock, recorder: Recorder
    ) -> None:
        self._engine = engine
        self._state = state
        self._retention = retention
        self._clock = clock
        self._recorder = recorder
        self._look_at = -math.inf
        self._read: Pulled | None = None

    @property
    def _known(self) -> Pulled:
        if self._read is None:
            try:
                self._read = codec.decode(Pulled, self._state.saved_images() or b"{}", "images.json")
            except RecordInvalid as error:
                log.warning("images.forgotten", error=error.message)
                self._read = Pulled()
        return self._read

    def needed(self, image: str, *, pulled: bool = False) -> None:
        """An image is needed now; one that was not here and was ``pulled`` is the agent's from now on."""
        before, now = self._known.images.get(image), self._clock.now()
        if before is None and not pulled:
            return
        self._known.images[image] = now
        if before is None or now - before > HOUR:
            self._save()

    async def tidy(self, needed: Iterable[Manifest], healthy: Iterable[Manifest]) -> None:
        """Note what pods need and what is good; now and then remove what has not been needed for long."""
        wanted, kept = set[str](), set[str]()
        for each in needed:
            wanted.add(each.id)
            kept.add(_image(each))
            self.needed(_image(each))
        for each in healthy:
            self._note_good(each)
        if not self._retention or self._clock.mono() < self._look_at:
            return
        self._look_at = self._clock.mono() + LOOK_SECONDS
        kept |= {image for name in wanted for image in self._known.good.get(name, ())}
        pressed = await self._pressed()
        limit = min(HOUR, self._retention) if pressed else self._retention
        for image in sorted(self._known.images.keys() - kept):
            # Asked anew for each: a pod may have come to need it meanwhile.
            if self._clock.now() - self._known.images[image] > limit:
                await self._remove(image, "disk" if pressed else "unused")

    def _note_good(self, manifest: Manifest) -> None:
        image, known = _image(manifest), self._known.good.get(manifest.id, [])
        if image and known[:1] != [image]:
            others = [each for each in known if each != image]
            self._known.good[manifest.id] = [image, *others][:GOOD_KEPT]
            self._save()

    async def _pressed(self) -> bool:
        """Whether little is free on the engine's disk, if that is one of this machine."""
        info = await self._engine.ask(self._engine.docker.system.info())
        folder = Path(str(info.get("DockerRootDir") or ""))
        if not folder.is_absolute() or not self._engine.url.startswith("unix:"):
            return False
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, folder)
        except OSError:
            return False
        return usage.free < usage.total * LEAST_FREE

    async def _remove(self, image: str, cause: str) -> None:
        """Remove an image; the engine keeps one that a container has."""
        docker, ask = self._engine.docker, self._engine.ask
        reference = images.parse(image)
        name = f"{reference.familiar}@{reference.digest}" if reference.digest else image
        try:
            await ask(docker.images.delete(name))
        except EngineRefused as error:
            log.info("image.kept", image=image, reason=error.message)
        try:
            await ask(docker.images.inspect(name))
        except EngineLacks:
            del self._known.images[image]
            self._save()
            self._recorder.count("farmd_images_removed_total", cause=cause)
            log.info("image.removed", image=image, cause=cause)

    def _save(self) -> None:
        known = self._known
        kept = {name: each for name, each in known.good.items() if not known.images.keys().isdisjoint(each)}
        self._read = Pulled(images=known.images, good=kept)
        self._state.save_images(codec.encode(self._read))


def _image(manifest: Manifest) -> str:
    return manifest.container.image if manifest.container is not None else ""
