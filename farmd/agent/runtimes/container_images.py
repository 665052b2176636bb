"""Removes images that this agent pulled, once nothing on its node has needed them for long.

What must never break: an image that somebody else brought is left alone, and so is one that a pod needs or
that was the last good one before it, because a rollback must not depend on a registry. Where the list of what
was pulled is lost, nothing is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from farmd.agent.errors import StartFailed
from farmd.agent.runtimes import container_config
from farmd.agent.runtimes.engine import Engine, EngineLacks, EngineRefused
from farmd.agent.state import StateDirectory
from store import codec, images
from store.containers import Volume
from store.errors import RecordInvalid
from store.features import NETWORK, VOLUMES
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


# Gets what a container needs on its node before it is made: the image, volumes, networks.

MADE_BY = "farmd.node"
"""The label of what an agent made, with the name of its node: it alone removes that again."""

TELL_SECONDS = 5.0
"""A reality is written each time, so not more often."""


class PullProgress:
    """Tells how far a pull is, from what the engine says of its layers: at once, then now and then."""

    def __init__(self, image: str, clock: Clock, tell: Callable[[str], None]) -> None:
        self._image = image
        self._clock = clock
        self._tell = tell
        self._layers: dict[str, tuple[int, int]] = {}
        self._told = clock.mono()
        tell(f"pulling {image}")

    def note(self, piece: Mapping[str, Any]) -> None:
        """One piece of what the engine says."""
        layer, detail = str(piece.get("id", "")), piece.get("progressDetail")
        current, total = (detail.get("current"), detail.get("total")) if isinstance(detail, dict) else (0, 0)
        # What is unpacked then counts up again from nothing.
        if isinstance(total, int) and total > 0 and piece.get("status") == "Downloading":
            self._layers[layer] = current if isinstance(current, int) else 0, total
        elif layer in self._layers:
            self._layers[layer] = self._layers[layer][1], self._layers[layer][1]
        if self._layers and self._clock.mono() >= self._told + TELL_SECONDS:
            self._told = self._clock.mono()
            done, total = (sum(sizes) / 1e6 for sizes in zip(*self._layers.values(), strict=True))
            self._tell(f"pulling {self._image}: {done:.0f} of {total:.0f} MB")


@dataclass(frozen=True, slots=True)
class Foreign:
    """The volumes and networks that a pod may have though no agent made them; None: any."""

    volumes: Collection[str] | None = None
    networks: Collection[str] | None = None


ANY = Foreign()


class ContainerNeeds:
    """Gets them through the engine; ``credentials`` is a file, read at each pull, or empty."""

    def __init__(
        self, engine: Engine, images: Images, credentials: str, node: str, clock: Clock, recorder: Recorder
    ) -> None:
        self._node = node
        self._engine = engine
        self._images = images
        self._credentials = credentials
        self._clock = clock
        self._recorder = recorder

    async def get(self, manifest: Manifest, tell: Callable[[str], None], known: Foreign = ANY) -> None:
        """Get what is missing, and ``tell`` of a pull how far it is.

        ``known``: what may be this pod's though no agent marked it as farmd's.

        Raises:
            StartFailed: with the reason for people.
        """
        assert manifest.container is not None
        await self._image(manifest, tell)
        for name in {mount.source for mount in manifest.mounts if mount.type == "volume"}:
            await self._volume(name, manifest, known)
        for name in manifest.container.networks:
            await self._network(name, known, internal=name in manifest.container.internal)

    async def _network(self, name: str, known: Foreign, *, internal: bool) -> None:
        docker, ask = self._engine.docker, self._engine.ask
        try:
            found = await ask((await ask(docker.networks.get(name))).show())
        except EngineLacks:
            body = {"Name": name, "Driver": "bridge", "CheckDuplicate": True, "Labels": {MADE_BY: self._node}}
            await ask(docker.networks.create(body | ({"Internal": True} if internal else {})))
            return
        # Engines find a network by a part of its id, too.
        real = str(found.get("Name"))
        if not (MADE_BY in (found.get("Labels") or {}) or known.networks is None or real in known.networks):
            raise StartFailed(
                f"agent.allow: this node does not allow {NETWORK}{real}, which no agent made",
                field="agent.allow",
            )
        if internal and not found.get("Internal"):
            raise StartFailed(
                f"container.internal: network {name} of this node is not internal: remove it, or rename yours"
            )

    async def tidy(self, needed: Collection[Manifest]) -> None:
        """Remove the networks that this agent made and no pod needs any more.

        Raises:
            StartFailed: the engine did not answer.
        """
        docker, ask = self._engine.docker, self._engine.ask
        kept = {name for each in needed if each.container is not None for name in each.container.networks}
        for found in await ask(docker.networks.list(filters={"label": [f"{MADE_BY}={self._node}"]})):
            if found["Name"] not in kept and MADE_BY in (found.get("Labels") or {}):
                with contextlib.suppress(EngineRefused):  # a container of somebody else's uses it
                    await ask((await ask(docker.networks.get(found["Id"]))).delete())

    async def _image(self, manifest: Manifest, tell: Callable[[str], None]) -> None:
        container = manifest.container
        assert container is not None
        image, docker = container.image, self._engine.docker
        self._images.needed(image)
        try:
            await self._engine.ask(docker.images.inspect(image))
            here = True
        except EngineLacks:
            here = False
        if container.pull == "never" and not here:
            raise StartFailed(f"container.image: {image} is not on this node, and container.pull is never")
        if here and (container.pull != "always" or "@sha256:" in image):
            return
        began = self._clock.mono()
        result, progress = "failed", PullProgress(image, self._clock, tell)
        try:
            await self._engine.pull(image, self._auth(image), container.platform, progress.note)
            result = "ok"
            self._images.needed(image, pulled=not here)
        except StartFailed as error:
            raise StartFailed(f"container.image: {image} cannot be pulled: {error.message}") from error
        finally:
            took = self._clock.mono() - began
            self._recorder.observe("farmd_image_pull_duration_seconds", took, result=result)

    def _auth(self, image: str) -> Mapping[str, str] | None:
        if not self._credentials:
            return None
        try:
            text = Path(self._credentials).read_text(encoding="utf-8")
            return container_config.registry_auth(text, image)
        except (OSError, ValueError) as error:
            # Never the content: it holds passwords.
            raise StartFailed(f"agent.registry_auth: {self._credentials} cannot be read") from error

    async def _volume(self, name: str, manifest: Manifest, known: Foreign) -> None:
        docker, ask = self._engine.docker, self._engine.ask
        wanted = manifest.volumes.get(name, Volume())
        try:
            found = await ask((await ask(docker.volumes.get(name))).show())
        except EngineLacks:
            labels = {**wanted.labels, container_config.NODE: self._node}
            body = {"Name": name, "Driver": wanted.driver, "DriverOpts": wanted.options, "Labels": labels}
            await ask(docker.volumes.create(body))
            return
        # A volume of an earlier version has no such label.
        ours = container_config.NODE in (found.get("Labels") or {})
        if not (ours or known.volumes is None or name in known.volumes):
            raise StartFailed(
                f"agent.allow: this node does not allow {VOLUMES}: it has {name}, which no agent made",
                field="agent.allow",
            )
