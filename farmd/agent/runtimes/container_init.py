"""Runs the commands of ``init`` for a container (R43), each in a container of its own that is like the pod's.

These containers have another label than those of pods, so nobody takes one for a pod. One that a killed agent
left is removed before the next start of its pod, and otherwise within a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farmd.agent.errors import StartFailed
from farmd.agent.exits import Failure, Stages
from farmd.agent.model import name_of
from farmd.agent.runtimes import container_config
from farmd.agent.runtimes.container_config import Bind
from farmd.agent.runtimes.container_listing import ENDED, exit_code
from farmd.agent.runtimes.container_logs import DRAIN_SECONDS, ContainerLogs
from farmd.agent.runtimes.engine import Engine
from farmd.agent.runtimes.runtime import InitFailed, Launch
from farmd.agent.stages import LONGEST_PAUSE, PAUSE, Tail
from store.manifests import Init
from store.ports import Clock

LOOK_SECONDS = 0.2
KILLED = -9


class InitContainers:
    """Those of one agent: ``handles`` are the ones that run."""

    def __init__(self, engine: Engine, logs: ContainerLogs, node: str, clock: Clock) -> None:
        self._engine = engine
        self._logs = logs
        self._node = node
        self._clock = clock
        self._making = asyncio.Lock()
        self.handles: set[str] = set()

    async def run(self, launch: Launch, binds: Sequence[Bind], files: dict[str, Path], folder: Path) -> None:
        """Run the commands in order, until all have succeeded; ``folder`` is that of the pod's log.

        Raises:
            InitFailed: with the command that failed and the end of its output.
            StartFailed: the engine did not run it.
            Unwanted: the start is given up.
        """
        for at, step in enumerate(launch.manifest.init):
            attempt = 0
            launch.tell(at, attempt)
            while (failure := await self._try(launch, at, binds, files, folder)) is not None:
                if attempt == step.retries:
                    told, _ = Stages(launch.start, failures=[failure]).told(launch.manifest)
                    raise InitFailed(told, exit_code=failure.code)
                await self._pause(min(LONGEST_PAUSE, PAUSE * 2.0**attempt), launch)
                attempt += 1
                launch.tell(at, attempt)

    async def _pause(self, seconds: float, launch: Launch) -> None:
        end = self._clock.mono() + seconds
        while (left := end - self._clock.mono()) > 0:
            launch.require_wanted()
            await self._clock.sleep(min(left, LOOK_SECONDS))

    async def _try(
        self, launch: Launch, at: int, binds: Sequence[Bind], files: dict[str, Path], folder: Path
    ) -> Failure | None:
        """Run a command once; how it failed, None if it did not."""
        step, handle, logs = launch.manifest.init[at], "", launch.manifest.logs
        body = container_config.init_body(self._node, launch, step, binds, files)
        try:
            async with self._making:
                container = await self._made(launch, body)
                handle = container.id
                self.handles.add(handle)
            await self._engine.ask(container.start(), 60.0)
            self._logs.follow(handle, launch.start, folder, (logs.max_bytes, logs.keep))
            code = await self._ended(handle, step, launch)
            await self._logs.drained(handle)
            if code == 0:
                return None
            why = "" if code is not None else f"it did not finish within {step.timeout:g} s"
            output = "" if code is None else await self._output(handle, launch)
            return Failure("init", at, KILLED if code is None else code, why, output)
        finally:
            if handle:
                await self._remove(handle)
                self.handles.discard(handle)

    async def _made(self, launch: Launch, body: dict[str, Any]) -> Any:
        """A new container, in place of one that is left."""
        name, container = name_of(self._node, launch.instance) + "..init", launch.manifest.container
        assert container is not None
        await self._remove(name)
        return await self._engine.created(name, body, {each: [] for each in container.networks})

    async def _ended(self, handle: str, step: Init, launch: Launch) -> int | None:
        """The exit code of a command; None if it takes too long."""
        give_up = self._clock.mono() + step.timeout
        while self._clock.mono() < give_up:
            state = (await self._engine.inspected(handle))["State"]
            if str(state["Status"]).lower() in ENDED:
                return exit_code(state)
            launch.require_wanted()
            await self._clock.sleep(LOOK_SECONDS)
        return None

    async def _output(self, handle: str, launch: Launch) -> str:
        """The end of a command's output, without what is secret; what an engine that hangs does not tell is
        left out.
        """
        tail = Tail(lambda _: None, launch.secrets.values)
        pieces = self._engine.stream(self._engine.logs(handle, 0), DRAIN_SECONDS)
        with contextlib.suppress(StartFailed):
            async with contextlib.aclosing(pieces) as told:
                async for piece in told:
                    for line in io.BytesIO(piece):
                        tail.write(line.partition(b" ")[2])
        return tail.take()

    async def _remove(self, container: str) -> None:
        """End and remove a container; nothing where it is gone or the engine does not do it now."""
        with contextlib.suppress(StartFailed):
            await self._engine.ask(self._engine.docker.containers.container(container).delete(force=True))

    async def tidy(self) -> None:
        """Remove the containers that an agent left which was killed.

        Raises:
            StartFailed: the engine did not answer.
        """
        async with self._making:
            label = f"{container_config.INIT}={self._node}"
            left = {each["Id"] for each in await self._engine.listed(label)} - self.handles
            for handle in left:
                await self._remove(handle)
