"""Gets what a container needs on its node before it is made: the image, volumes, networks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from farmd.agent.errors import StartFailed
from farmd.agent.runtimes import container_config
from farmd.agent.runtimes.container_images import Images
from farmd.agent.runtimes.engine import Engine, EngineLacks, EngineRefused
from store.containers import Volume
from store.features import VOLUMES
from store.manifests import Manifest
from store.ports import Clock, Recorder

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

    async def get(
        self, manifest: Manifest, tell: Callable[[str], None], known: Collection[str] | None = None
    ) -> None:
        """Get what is missing, and ``tell`` of a pull how far it is.

        ``known``: volumes that are this pod's though no agent marked them as farmd's; None: any may be had.

        Raises:
            StartFailed: with the reason for people.
        """
        assert manifest.container is not None
        await self._image(manifest, tell)
        for name in {mount.source for mount in manifest.mounts if mount.type == "volume"}:
            await self._volume(name, manifest, known)
        for name in manifest.container.networks:
            await self._network(name, internal=name in manifest.container.internal)

    async def _network(self, name: str, *, internal: bool) -> None:
        docker, ask = self._engine.docker, self._engine.ask
        try:
            found = await ask((await ask(docker.networks.get(name))).show())
        except EngineLacks:
            body = {"Name": name, "Driver": "bridge", "CheckDuplicate": True, "Labels": {MADE_BY: self._node}}
            await ask(docker.networks.create(body | ({"Internal": True} if internal else {})))
            return
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

    async def _volume(self, name: str, manifest: Manifest, known: Collection[str] | None) -> None:
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
        if not ours and known is not None and name not in known:
            raise StartFailed(
                f"agent.allow: this node does not allow {VOLUMES}: it has {name}, which no agent made",
                field="agent.allow",
            )
