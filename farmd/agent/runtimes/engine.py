"""A container engine's Docker API (Docker, podman), asked so that nothing waits for it for ever.

aiodocker is imported when the first engine is made, so that an agent without one pays nothing. Status codes
are not interpreted: engines differ in them, so callers look at what is there afterwards.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp

from farmd.agent.errors import StartFailed
from farmd.agent.runtimes.runtime import Silent
from store import images
from store.credentials import told

T = TypeVar("T")

ANSWER_SECONDS = 20.0
# Podman says nothing while it unpacks.
PULL_SILENCE_SECONDS = 300.0
ENDLESS = aiohttp.ClientTimeout(total=None)
NO_CONNECTION = 900  # what aiodocker says in place of a status code


class EngineSilent(Silent):
    """The engine did not answer, so nobody knows what it did."""

    code = "engine_silent"


class EngineRefused(StartFailed):
    """The engine answered that it did not do what it was asked."""

    code = "engine_refused"


class EngineLacks(EngineRefused):
    """What the engine was asked about is not there."""


class Engine:
    """The engine at a URL such as ``unix:///run/podman/podman.sock``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.told = told(url)  # it goes into a status that all may read
        self._docker: Any = None

    @property
    def docker(self) -> Any:
        """The client, an ``aiodocker.Docker``; every use goes through ``ask`` or ``stream``.

        Raises:
            EngineSilent: aiodocker is not installed.
        """
        if self._docker is None:
            try:
                import aiodocker
            except ImportError as error:
                raise EngineSilent(
                    "agent.engine needs aiodocker, farmd's extra [containers] (docs/operations.md#install)"
                ) from error
            # With a URL the environment's DOCKER_HOST and contexts do not count.
            self._docker = aiodocker.Docker(url=self.url)
        return self._docker

    async def ask(self, what: Awaitable[T], seconds: float | None = None) -> T:
        """Await one answer, which takes at most ``seconds``; None: ``ANSWER_SECONDS``.

        Raises:
            EngineSilent: there was none in time, so the outcome is unknown.
            EngineRefused: the answer was an error.
        """
        with self.translated():
            async with asyncio.timeout(ANSWER_SECONDS if seconds is None else seconds):
                return await what

    async def stream(
        self, what: AsyncGenerator[T, None], silence: float | None = None
    ) -> AsyncGenerator[T, None]:
        """Pass on what comes, with at most ``silence`` seconds between two pieces; the caller closes it.

        Raises:
            EngineSilent: the connection broke, or nothing came for too long.
            EngineRefused: an error came.
        """
        with self.translated():
            async with contextlib.aclosing(what):
                while True:
                    try:
                        async with asyncio.timeout(silence):
                            piece = await anext(what)
                    except StopAsyncIteration:
                        return
                    yield piece

    @contextlib.contextmanager
    def translated(self) -> Any:
        """Tell of the engine's errors as of ours."""
        import aiodocker

        try:
            yield
        except TimeoutError as error:
            raise EngineSilent(f"the container engine at {self.told} does not answer") from error
        except aiodocker.DockerError as error:
            if error.status >= NO_CONNECTION:
                raise EngineSilent(f"the container engine at {self.told} does not answer") from error
            kind = EngineLacks if error.status == HTTPStatus.NOT_FOUND else EngineRefused
            raise kind(_one_line(error.message)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineSilent(f"the container engine at {self.told} does not answer: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Something else answers there, such as a proxy: aiodocker trusts every answer.
            raise EngineSilent(f"what answers at {self.told} is not a container engine: {error!r}") from error

    async def listed(self, label: str) -> list[Mapping[str, Any]]:
        """All containers with a label, also those that ended."""
        found = await self.ask(self.docker.containers.list(all=True, filters={"label": [label]}))
        with self.translated():
            return [{"Id": str(each["Id"]), "State": str(each["State"])} for each in found]

    async def apart(self) -> bool:
        """Whether root in a container is nobody on the node; False if the engine does not tell.

        Raises:
            EngineSilent: it did not answer.
        """
        try:
            found = await self.ask(self.docker.system.info())
        except EngineRefused:
            return False
        with self.translated():
            options = [str(each).split(",")[0] for each in found.get("SecurityOptions") or []]
        return not {"name=userns", "name=rootless"}.isdisjoint(options)

    async def created(self, name: str, body: dict[str, Any], networks: Mapping[str, list[str]]) -> Any:
        """Make a container, and connect it to all networks; ``body`` names the first one of these.

        Raises:
            EngineSilent, EngineRefused: a part of it was not done, or nobody knows.
        """
        made = await self.ask(self.docker.containers.create(body, name=name))
        for network, aliases in list(networks.items())[1:]:
            config = {"Container": made.id, "EndpointConfig": {"Aliases": aliases}}
            await self.ask((await self.ask(self.docker.networks.get(network))).connect(config))
        return made

    async def inspected(self, container: str) -> Mapping[str, Any]:
        """All about one container."""
        return await self.ask(self.docker.containers.container(container).show())

    async def executed(self, execution: Any) -> None:
        """Run a command in a container, an ``aiodocker.execs.Exec``, to its end, however long that takes.

        Raises:
            EngineSilent: the connection broke.
            EngineRefused: the engine did not run it.
        """
        with self.translated():
            async with execution.start(detach=False) as stream:
                while await stream.read_out() is not None:
                    pass

    async def logs(self, container: str, since: int) -> AsyncGenerator[bytes, None]:
        """The output of a container and what follows, a line or a part of one at a time, each with its time.

        aiodocker's own streams leave a connection open that broke, so the answer is read here.
        """
        asked = {"stdout": "1", "stderr": "1", "follow": "1", "timestamps": "1", "since": str(since)}
        query = self.docker._query(f"containers/{container}/logs", params=asked, timeout=ENDLESS)
        async with query as response, response:
            while True:
                try:
                    head = await response.content.readexactly(8)
                    yield await response.content.readexactly(int.from_bytes(head[4:], "big"))
                except asyncio.IncompleteReadError:
                    return

    async def events(self, label: str) -> AsyncGenerator[bytes, None]:
        """What happens to containers with a label, one line each."""
        filters = json.dumps({"type": ["container"], "label": [label]})
        query = self.docker._query("events", params={"filters": filters}, timeout=ENDLESS)
        async with query as response, response:
            async for line in response.content:
                yield line

    async def pull(
        self,
        image: str,
        auth: Mapping[str, str] | None,
        platform: str,
        tell: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        """Pull an image, and ``tell`` what the engine says of it; the engine gives it up when cancelled.

        Raises:
            EngineSilent: nothing came for too long.
            EngineRefused: the registry or the engine refused, or the disk is full.
        """
        pieces = self.stream(self._pulled(image, auth, platform), PULL_SILENCE_SECONDS)
        async with contextlib.aclosing(pieces) as told:
            async for line in told:
                try:
                    piece = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(piece, dict):
                    continue
                if "error" in piece:
                    raise EngineRefused(_one_line(str(piece["error"])))
                tell(piece)

    async def _pulled(
        self, image: str, auth: Mapping[str, str] | None, platform: str
    ) -> AsyncGenerator[bytes, None]:
        """What the engine tells of a pull, line by line.

        aiodocker takes no login for an image without a registry's name, and closes no pull that hangs.
        """
        reference = images.parse(image)
        # Without a tag an engine would pull all tags.
        whole = image if reference.tag or reference.digest else f"{image}:latest"
        asked = {"fromImage": whole} | ({"platform": platform} if platform else {})
        login = base64.urlsafe_b64encode(json.dumps(dict(auth or {})).encode()).decode()
        headers = {"X-Registry-Auth": login} if auth else {}
        query = self.docker._query("images/create", "POST", params=asked, headers=headers, timeout=ENDLESS)
        async with query as response, response:
            async for line in response.content:
                yield line

    async def close(self) -> None:
        """Drop the connections."""
        if self._docker is not None:
            await self._docker.close()
            self._docker = None


def _one_line(message: object) -> str:
    text = " ".join(str(message).split())
    return text[:400] or "the container engine gave no reason"
