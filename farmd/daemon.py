"""The only place that builds concrete things: a farm's or an agent's process from its configuration.

``farmd run`` and ``farmd agent`` differ in one builder each; the frame around them (signals, HTTP,
metrics, watchdog, reload) is the same. What it guards: each failure has its exit code (78 bad
configuration, 75 temporary, 1 crash) and one clear line, and a store that cannot be reached is
waited for with backoff, never a reason to exit.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from farmd import lifecycle
from farmd import logging as logs
from farmd.clock import SystemClock, SystemIds, system_rng
from farmd.config import Config
from farmd.config_sources import ConfigInvalid, Loaded
from farmd.lifecycle import Life, Service
from farmd.metrics import Metrics
from farmd.progress import Progress
from farmd.sdnotify import Notifier
from farmd.version import version
from farmd.web.app import Subject, build_app
from farmd.web.server import CannotListen, listening, serving
from store.consul.client import ConsulClient
from store.consul.connect import connect
from store.errors import InputInvalid, Retry, StoreError
from store.keys import Keys
from store.ports import Clock, Ids, Rng

log = structlog.get_logger()

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 15.0


@dataclass(frozen=True, slots=True)
class Frame:
    """What every builder gets. ``address`` is where others reach this process's HTTP."""

    config: Config
    life: Life
    client: ConsulClient
    keys: Keys
    clock: SystemClock
    rng: Rng
    ids: Ids
    registry: CollectorRegistry
    metrics: Metrics
    progress: Progress
    address: str


@dataclass(frozen=True, slots=True)
class Built:
    """A process's work, what it adds to the HTTP face, and what ``/v1/status`` says of it."""

    service: Service
    routes: Iterable[web.AbstractRouteDef] = ()
    status: Callable[[], Mapping[str, Any]] = field(default=dict)


Builder = Callable[[Frame], Built]


def run_farm(loaded: Loaded, load: Callable[[], Loaded], env: MutableMapping[str, str]) -> int:
    """``farmd run``: returns the exit code."""
    return _process("farm", build_farm, loaded.config.web.farm_port, loaded, load, env)


def run_agent(loaded: Loaded, load: Callable[[], Loaded], env: MutableMapping[str, str]) -> int:
    """``farmd agent``: returns the exit code."""
    return _process("agent", build_agent, loaded.config.web.agent_port, loaded, load, env)


def _process(
    role: str,
    build: Builder,
    port: int,
    loaded: Loaded,
    load: Callable[[], Loaded],
    env: MutableMapping[str, str],
) -> int:
    logs.configure(loaded.config.log.level, loaded.config.log.format)
    structlog.contextvars.bind_contextvars(role=role)
    try:
        clean = asyncio.run(_live(role, build, port, loaded, load, env))
    except ConfigInvalid as error:
        return _failed(lifecycle.EXIT_CONFIG, "config.invalid", " ".join(error.lines))
    except InputInvalid as error:
        return _failed(lifecycle.EXIT_CONFIG, "config.invalid", error.message)
    except CannotListen as error:
        return _failed(lifecycle.EXIT_TEMPORARY, "web.cannot_listen", str(error))
    except StoreError as error:
        temporary = error.retry is Retry.BACKOFF
        code = lifecycle.EXIT_TEMPORARY if temporary else lifecycle.EXIT_CRASH
        return _failed(code, "process.failed", error.message, code=error.code)
    except Exception:
        log.exception("process.crashed")
        return lifecycle.EXIT_CRASH
    if not clean:
        # What did not end when asked would keep the interpreter from ending, too.
        sys.stdout.flush()
        os._exit(lifecycle.EXIT_CRASH)
    log.info("process.stopped")
    return lifecycle.EXIT_OK


def _failed(exit_code: int, event: str, reason: str, **fields: str) -> int:
    log.error(event, reason=reason, exit_code=exit_code, **fields)
    return exit_code


async def _live(
    role: str,
    build: Builder,
    port: int,
    loaded: Loaded,
    load: Callable[[], Loaded],
    env: MutableMapping[str, str],
) -> bool:
    config, clock, registry = loaded.config, SystemClock(), CollectorRegistry()
    metrics = Metrics(registry)
    metrics.set("farmd_build_info", 1, version=version())
    progress = Progress(clock, metrics)
    life = Life(loaded, load, Notifier.from_environment(env), progress, clock, metrics)
    client = connect(consul_environment(config, env), clock, metrics)
    try:
        with listening(config.web.bind, port) as sock:
            frame = Frame(
                config=config,
                life=life,
                client=client,
                keys=Keys(config.store.prefix),
                clock=clock,
                rng=system_rng(),
                ids=SystemIds(),
                registry=registry,
                metrics=metrics,
                progress=progress,
                address=advertised(config, sock),
            )
            return await _serve(role, build(frame), frame, sock)
    finally:
        await client.close()


async def _serve(role: str, built: Built, frame: Frame, sock: socket.socket) -> bool:
    def status() -> dict[str, Any]:
        return {"role": role, "version": version(), "pid": os.getpid(), **built.status()}

    def ready() -> str:
        return "" if built.service.ready.is_set() else frame.life.waiting_for or "starting"

    app = build_app(Subject(frame.registry, frame.progress, ready, status))
    app.router.add_routes(built.routes)
    log.info(
        "process.started", version=version(), pid=os.getpid(), config=sorted(set(frame.life.loaded.origins))
    )
    async with lifecycle.signals(frame.life), serving(app, sock, frame.config.web.port_file):
        frame.life.notifier.ready(frame.life.waiting_for)
        return await lifecycle.run(built.service, frame.life)


def consul_environment(config: Config, env: Mapping[str, str]) -> dict[str, str]:
    """The ``CONSUL_*`` variables with the configuration's address and token file put in."""
    ours = {"CONSUL_HTTP_ADDR": config.store.address, "CONSUL_HTTP_TOKEN_FILE": config.store.token_file}
    return {**env, **{name: value for name, value in ours.items() if value}}


def advertised(config: Config, sock: socket.socket) -> str:
    """``http://host:port`` for other machines; the host's name where it listens on all addresses."""
    bind, port = sock.getsockname()[:2]
    everywhere = bind in ("0.0.0.0", "::")
    host = config.web.advertise or (socket.gethostname() if everywhere else bind)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def wait_for_store(client: ConsulClient, life: Life, clock: Clock, rng: Rng) -> None:
    """Return once Consul has a leader; meanwhile say in logs, status and ``/ready`` why not.

    Raises:
        StoreError: trying again cannot help, as with a denied token.
    """
    wait = FIRST_WAIT_SECONDS
    while True:
        try:
            await client.leader()
        except StoreError as error:
            if error.retry is Retry.NEVER:
                raise
            log.warning("store.unreachable", code=error.code, reason=error.message, retry_in=round(wait, 1))
            life.say(f"waiting for Consul: {error.message}")
        else:
            life.say("starting")
            return
        await clock.sleep(wait * rng.uniform(0.8, 1.2))
        wait = min(LONGEST_WAIT_SECONDS, wait * 2)


def build_farm(frame: Frame) -> Built:
    """A farm: it waits for the store, registers the cluster if it is the first, then claims."""
    raise NotImplementedError(frame)


def build_agent(frame: Frame) -> Built:
    """A node agent."""
    raise NotImplementedError(frame)
