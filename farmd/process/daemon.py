"""Runs a farm's or an agent's process from its configuration, within its memory."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Literal

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from farmd.agent.errors import AgentError
from farmd.config.sections import Config, WebSection
from farmd.config.sources import Loaded
from farmd.observe import logging as logs
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.process import lifecycle, permissions
from farmd.process.checks import consul_environment, open_to_all
from farmd.process.lifecycle import Life, Notifier
from farmd.process.permissions import Permitted
from farmd.process.services import Built, Dependencies
from farmd.process.start import START_SECONDS, collect_rarely, pause_collection
from farmd.runtime.clock import SystemClock, SystemIds, system_rng
from farmd.web import tls
from farmd.web.access import Access, for_metrics
from farmd.web.hosts import Refusals
from farmd.web.server import CannotListen, Subject, build_app, listening, serving
from store.consul.transport import connect
from store.errors import InputInvalid, Retry, StoreError
from store.keys import Keys
from store.version import VERSION

# Settings of glibc's allocator for a long-lived process.
#
# A farm reads trees of many megabytes now and then and keeps only a fraction of each. By default glibc
# raises its threshold for separately mapped blocks with every such block that is freed, until whole answers
# are in the heap, and memory that is freed below newer blocks never returns to the system.

M_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES = 128 * 1024


def return_large_blocks() -> bool:
    """Map every large block separately, so that freeing it returns it to the system at once.

    Returns whether the C library accepted the setting; only glibc has it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES) == 1


# Runs a farm's or an agent's process from its configuration.
#
# ``farmd run`` and ``farmd agent`` differ only in the function that builds their service; signals, HTTP,
# metrics, watchdog and reload are the same. Each failure must have its exit code (78 bad configuration,
# 75 temporary, 1 crash) and one clear line. A process never ends because the store cannot be reached: it
# tries again with backoff.

log = structlog.get_logger()

Builder = Callable[[Dependencies], Built]


def run_farm(loaded: Loaded, load: Callable[[], Loaded], env: MutableMapping[str, str]) -> int:
    """``farmd run``: returns the exit code."""
    from farmd.process.farm_service import build_farm  # an agent needs none of a farm's parts

    return _process("farm", build_farm, loaded.config.web.farm_port, loaded, load, env)


def run_agent(loaded: Loaded, load: Callable[[], Loaded], env: MutableMapping[str, str]) -> int:
    """``farmd agent``: returns the exit code."""
    from farmd.process.agent_service import build_agent  # nor a farm an agent's

    return _process("agent", build_agent, loaded.config.web.agent_port, loaded, load, env)


def _process(
    role: Literal["farm", "agent"],
    build: Builder,
    port: int,
    loaded: Loaded,
    load: Callable[[], Loaded],
    env: MutableMapping[str, str],
) -> int:
    logs.configure(loaded.config.log.level, loaded.config.log.format)
    structlog.contextvars.bind_contextvars(role=role)
    return_large_blocks()
    pause_collection()
    try:
        clean = asyncio.run(_live(role, build, port, loaded, load, env))
    except InputInvalid as error:
        return _failed(lifecycle.EXIT_CONFIG, "config.invalid", error.message)
    except CannotListen as error:
        return _failed(lifecycle.EXIT_TEMPORARY, "web.cannot_listen", str(error))
    except (StoreError, AgentError) as error:
        temporary = error.retry is Retry.BACKOFF
        code = lifecycle.EXIT_TEMPORARY if temporary else lifecycle.EXIT_CRASH
        return _failed(code, "process.failed", error.message, code=error.code)
    except Exception:
        log.exception("process.crashed")
        return lifecycle.EXIT_CRASH
    if not clean:
        # Threads that did not end would also keep the interpreter from ending.
        sys.stdout.flush()
        os._exit(lifecycle.EXIT_CRASH)
    log.info("process.stopped")
    return lifecycle.EXIT_OK


def _failed(exit_code: int, event: str, reason: str, **fields: str) -> int:
    log.error(event, reason=reason, exit_code=exit_code, **fields)
    return exit_code


async def _live(
    role: Literal["farm", "agent"],
    build: Builder,
    port: int,
    loaded: Loaded,
    load: Callable[[], Loaded],
    env: MutableMapping[str, str],
) -> bool:
    config, clock, registry = loaded.config, SystemClock(), CollectorRegistry()
    asyncio.get_running_loop().call_later(START_SECONDS, collect_rarely)
    ProcessCollector(registry=registry)
    metrics = Metrics(registry, role)
    metrics.set("farmd_build_info", 1, version=VERSION)
    progress = Progress(clock, metrics)
    life = Life(loaded, load, Notifier.from_environment(env), progress, clock, metrics)
    client = connect(consul_environment(config, env), clock, metrics, session_node=config.store.session_node)
    try:
        encrypted = _encrypted(config.web, life)
        with listening(config.web.bind, port) as sock:
            dependencies = Dependencies(
                config=config,
                life=life,
                client=client,
                keys=Keys(config.store.prefix),
                clock=clock,
                rng=system_rng(),
                ids=SystemIds(),
                recorder=metrics,
                progress=progress,
                address=advertised(config, sock),
                env=env,
            )
            return await _serve(role, build(dependencies), dependencies, registry, sock, encrypted)
    finally:
        await client.close()


def _encrypted(section: WebSection, life: Life) -> tls.ServerContext | None:
    """What to serve HTTP with; a reload reads its files again.

    Raises:
        CredentialInvalid: a file is not usable.
    """
    context = tls.server_context(section, life.recorder)
    if context is not None:
        life.on_reload.append(lambda _: context.look())
    return context


async def _serve(
    role: Literal["farm", "agent"],
    built: Built,
    dependencies: Dependencies,
    registry: CollectorRegistry,
    sock: socket.socket,
    encrypted: tls.ServerContext | None,
) -> bool:
    def status() -> dict[str, Any]:
        return {"role": role, "version": VERSION, "pid": os.getpid(), **built.status()}

    def publish() -> None:
        dependencies.progress.publish()
        built.publish()

    service = _permitted(role, built, dependencies)
    app = build_app(Subject(registry, dependencies.progress, service.lacks, status, publish))
    section = dependencies.config.web
    if section.metrics == "token":
        refusals = Refusals(dependencies.recorder, dependencies.clock)
        app.middlewares.append(for_metrics(Access(section, dependencies.clock, refusals)))
    for line in open_to_all(section):
        log.warning("web.open_to_all", reason=line)
    built.mount(app)
    log.info(
        "process.started",
        version=VERSION,
        pid=os.getpid(),
        config=sorted(set(dependencies.life.loaded.origins)),
    )
    async with (
        lifecycle.signals(dependencies.life),
        serving(app, sock, dependencies.recorder, section.port_file, encrypted),
    ):
        dependencies.life.notifier.ready(dependencies.life.waiting_for)
        return await lifecycle.run(service, dependencies.life)


def _permitted(role: Literal["farm", "agent"], built: Built, dependencies: Dependencies) -> Permitted:
    """The service, which is not ready with a token that may not do its work."""
    keys, client, clock = dependencies.keys, dependencies.client, dependencies.clock
    if role == "farm":
        needed, policy = permissions.of_farm(keys), "acl/farm.hcl"
    else:
        needed = permissions.of_agent(keys, dependencies.config.agent.node)
        policy = "acl/agent.hcl"
    recorder, rights = dependencies.recorder, dependencies.rights
    return Permitted(built.service, client, needed, policy, clock, recorder, rights)


def advertised(config: Config, sock: socket.socket) -> str:
    """``http://host:port`` or ``https://host:port`` for other machines."""
    bind, port = sock.getsockname()[:2]
    scheme, host = "https" if config.web.tls_cert else "http", tls.host(config.web, bind)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
