"""Runs a service with signals, reload, watchdog, readiness and exit code.

A first SIGTERM or SIGINT must stop the service cleanly and a second one at once. systemd's watchdog is fed
only while every loop makes progress. An invalid configuration changes nothing on reload. ``READY=1`` is sent
as soon as signals and HTTP work: a process that waits for Consul counts as started, and shows in its status
and in ``/ready`` that it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from farmd.config.sections import Config
from farmd.config.sources import ConfigInvalid, Loaded, changes
from farmd.observe import logging as logs
from farmd.observe.progress import Progress
from farmd.runtime.clock import systemd_clock_usec
from store.ports import Clock, Recorder

# Logs where a process hangs whose event loop is blocked, for example by a disk that does not answer.
#
# Such a process renews no session, answers no HTTP and feeds no watchdog, so systemd ends it; by itself it
# could not say why. A thread looks at the loop from outside, and changes nothing.

log = structlog.get_logger()

LOOK_SECONDS = 5.0
BLOCKED_SECONDS = 10.0
_FRAMES = 4


@contextlib.contextmanager
def logged(
    age: Callable[[], float], look: float = LOOK_SECONDS, limit: float = BLOCKED_SECONDS
) -> Iterator[None]:
    """Log ``loop.blocked`` when two looks in a row find no progress of this thread for ``limit`` seconds.

    ``age`` gives the seconds since its last progress. One look is not enough: the whole process may have
    been stopped. A line is logged once until there is progress again.
    """
    over, thread = threading.Event(), threading.get_ident()

    def watch() -> None:
        found = 0
        while not over.wait(look):
            seconds = age()
            found = found + 1 if seconds > limit else 0
            if found == 2:
                log.error("loop.blocked", seconds=round(seconds, 1), where=_where(thread))

    context = contextvars.copy_context()
    watching = threading.Thread(target=context.run, args=(watch,), name="blocked", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _where(thread: int) -> str:
    """The innermost calls of a thread, the last one first; files without their folders."""
    frames = traceback.extract_stack(sys._current_frames()[thread])[-_FRAMES:]
    return " < ".join(
        f"{each.name} ({each.filename.rpartition('/')[2]}:{each.lineno})" for each in reversed(frames)
    )


# Tells systemd the service's state: ready, reloading, stopping, alive (sd_notify(3)).
#
# Without ``NOTIFY_SOCKET`` all methods do nothing. The variable is removed from the environment, so that no
# child can send messages for the service. A message that cannot be sent is logged once and never stops the
# work: then systemd's own timeouts decide.


class Notifier:
    """The service's side of sd_notify. ``watchdog_seconds`` is 0 if systemd has no watchdog for it."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._failed = False
        self.watchdog_seconds = watchdog_seconds

    @classmethod
    def from_environment(cls, env: MutableMapping[str, str]) -> Notifier:
        """Read systemd's variables and remove them from ``env``."""
        address = env.pop("NOTIFY_SOCKET", "")
        usec, pid = env.pop("WATCHDOG_USEC", ""), env.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        return cls(address, int(usec) / 1e6 if usec.isdigit() and ours else 0.0)

    def ready(self, status: str) -> None:
        """Report that the service has started, or has reloaded."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self, usec: int) -> None:
        """Report a reload that began at ``usec`` of CLOCK_MONOTONIC; ``ready`` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={usec}", "STATUS=reloading")

    def stopping(self, status: str) -> None:
        """Report that a stop began."""
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Set the line for ``systemctl status``."""
        self._send(f"STATUS={text}")

    def watchdog(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        message = "\n".join(line.replace("\n", " ") for line in assignments)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.connect(self._address)
                to.sendall(message.encode())
        except OSError as error:
            if not self._failed:
                log.warning("systemd.not_notified", error=error.strerror)
            self._failed = True
        else:
            self._failed = False


EXIT_OK, EXIT_CRASH, EXIT_TEMPORARY, EXIT_CONFIG = 0, 1, 75, 78
TICK_SECONDS = 5.0
LONGEST_TICK_SECONDS = 30.0
ANNOUNCE_SECONDS = 0.5
STARTING = "starting"


class ProcessService(Protocol):
    """The work of a process: a farm or an agent."""

    def lacks(self) -> str:
        """What it waits for before it can do its work, for people; empty: it can."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, then end cleanly."""


@dataclass(slots=True)
class Life:
    """The state of one process. ``on_reload`` gets each valid new configuration."""

    loaded: Loaded
    load: Callable[[], Loaded]
    notifier: Notifier
    progress: Progress
    clock: Clock
    recorder: Recorder
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    forced: asyncio.Event = field(default_factory=asyncio.Event)
    on_reload: list[Callable[[Config], None]] = field(default_factory=list)
    waiting_for: str = STARTING

    def say(self, lacks: str) -> None:
        """Tell systemd what the service lacks; "" when it is ready."""
        self.waiting_for = lacks
        self.notifier.status(lacks or "ready")

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.loaded.config


@contextlib.asynccontextmanager
async def signals(life: Life) -> AsyncIterator[None]:
    """Handle signals: SIGTERM and SIGINT stop the process, a second one forces that; SIGHUP reloads."""
    loop = asyncio.get_running_loop()

    def stop(name: str) -> None:
        if life.stop.is_set():
            log.warning("process.stop_forced", signal=name)
            life.forced.set()
            return
        log.info("process.stopping", signal=name)
        life.notifier.stopping("stopping")
        life.stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, reload, life)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def reload(life: Life) -> None:
    """Read the configuration again; apply what may change, log the difference."""
    life.notifier.reloading(systemd_clock_usec())
    try:
        after = life.load()
    except ConfigInvalid as error:
        for line in error.lines:
            log.error("config.refused", mistake=line)  # noqa: TRY400 - a mistake in the configuration needs no traceback
        life.recorder.count("farmd_config_reloads_total", result="refused")
    else:
        _apply(life, after)
    life.notifier.ready(life.waiting_for or "ready")


def _apply(life: Life, after: Loaded) -> None:
    found = changes(life.config, after.config)
    for change in found:
        event = "config.changed" if change.reloadable else "config.restart_needed"
        log.info(event, key=change.key, before=change.before, after=change.after)
    log.info("config.reloaded", changed=len(found))
    life.recorder.count("farmd_config_reloads_total", result="applied" if found else "unchanged")
    logs.set_level(after.config.log.level)
    for tell in life.on_reload:
        tell(after.config)
    life.loaded = after


async def watch_over(life: Life) -> None:
    """Feed the watchdog while all loops make progress; log when loops stall and when they recover."""
    notifier, known = life.notifier, list[str]()
    tick = min(TICK_SECONDS, notifier.watchdog_seconds / 2) if notifier.watchdog_seconds else TICK_SECONDS
    with (
        life.progress.loop("daemon", LONGEST_TICK_SECONDS) as loop,
        logged(lambda: life.clock.mono() - loop.last),
    ):
        while True:
            loop.beat()
            stalled = life.progress.stalled()
            if stalled != known:
                log.log(
                    40 if stalled else 20, "loops.stalled" if stalled else "loops.recovered", loops=stalled
                )
                known = stalled
            if not stalled:
                notifier.watchdog()
            await life.clock.sleep(tick)


async def run(service: ProcessService, life: Life) -> bool:
    """Run the service until it ends; True if it was stopped cleanly, False if it was forced."""
    work = asyncio.create_task(service.run(life.stop), name="service")
    others = [
        asyncio.create_task(_announce(service, life), name="announce"),
        asyncio.create_task(life.forced.wait(), name="forced"),
        asyncio.create_task(watch_over(life), name="watchdog"),
    ]
    try:
        while not work.done():
            await asyncio.wait([work, *others], return_when=asyncio.FIRST_COMPLETED)
            if life.forced.is_set():
                break
            for other in others:
                if other.done():
                    other.result()
            others = [other for other in others if not other.done()]
        if work.done():
            work.result()
        return work.done()
    finally:
        for task in (work, *others):
            task.cancel()
        # A forced stop waits for no task: tasks that hang end with the process.
        await asyncio.wait([work, *others], timeout=1.0)


async def _announce(service: ProcessService, life: Life) -> None:
    """Log whenever the service becomes ready or stops being so; notify whenever it lacks something else."""
    while True:
        before, lacks = life.waiting_for, service.lacks()
        if lacks != before:
            life.say(lacks)
        if before and not lacks:
            log.info("process.ready")
        elif lacks and not before:
            log.info("process.not_ready", lacks=lacks)
        await life.clock.sleep(ANNOUNCE_SECONDS)
