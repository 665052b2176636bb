"""Decides whose output goes where, and has one thread per destination send it.

A destination that hangs holds up its own thread alone. Nothing here is needed for a workload: after an error
it goes on later, from the place up to which the output was sent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from farmd.agent.forwarding import senders
from farmd.agent.forwarding.senders import Sender
from farmd.agent.forwarding.stream import Origin, Stream
from farmd.agent.lease import now
from farmd.agent.log_files import trouble
from farmd.agent.logs import LogLine
from farmd.agent.pod import Pod
from farmd.agent.state import StateDirectory
from store.log_destinations import elsewhere, parsed
from store.manifests import MAIN
from store.ports import Clock, Recorder
from store.reality import Forwarded

log = structlog.get_logger()

SYNC_SECONDS = 1.0
LOOK_SECONDS = 0.3
SAVE_SECONDS = 1.0
LONGEST_PAUSE = 30.0
REST = 2.0
"""A thread rests this many times as long as it worked, so that a pod that writes very much is no load."""
LAST_WORDS_SECONDS = 60.0
"""How long the output of a removed pod is offered to a destination that does not take it."""
MOST_DESTINATIONS = 16
JOIN_SECONDS = 1.0
HANGS_SECONDS = 20.0


Which = tuple[str, str]
"""An instance and one of its processes."""


@dataclass(eq=False)
class Lane:
    """One destination: its sender, and the pods whose output goes there."""

    to: str
    sender: Sender
    streams: dict[Which, Stream] = field(default_factory=dict)
    ending: list[Stream] = field(default_factory=list)
    problem: str = ""
    sent: int = 0
    lost: int = 0
    _batch: tuple[Stream, list[LogLine]] | None = None
    _saved: float = 0.0
    _since: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """Send from now on."""
        self._thread = threading.Thread(target=self._run, name=f"logs {self.to}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more; ``join`` waits for that."""
        self._stop.set()

    def join(self) -> None:
        """Wait a moment for the thread's end, so that the places are saved."""
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def add(self, stream: Stream) -> None:
        """Send a pod's output."""
        with self._lock:
            self.streams[stream.origin.instance, stream.origin.process] = stream

    def end(self, gone: Iterable[Which], *, stays: bool = False) -> None:
        """Send what is left of processes that are no more, or whose output goes here no more; unless its
        files stay, the pod's folder is about to be removed.
        """
        with self._lock:
            for which in gone:
                stream = self.streams.pop(which)
                if not self._stop.is_set():  # else nobody sends and closes it any more
                    stream.end(now(), stays=stays)
                    self.ending.append(stream)

    def of(self, instance: str) -> list[Which]:
        """The processes of a pod whose output goes here."""
        return [each for each in list(self.streams) if each[0] == instance]

    @property
    def told(self) -> str:
        """Why nothing is sent now. A lookup of a name has no time limit, and holds up this thread alone."""
        hangs = self._since and now() >= self._since + HANGS_SECONDS
        return "it hangs, perhaps in the lookup of the name" if hangs and not self.problem else self.problem

    @property
    def idle(self) -> bool:
        """Whether nobody's output goes here any more."""
        return not self.streams and not self.ending

    def _run(self) -> None:
        pause = LOOK_SECONDS
        while not self._stop.is_set():
            began = now()
            try:
                busy = self._pass(began)
            except OSError as error:
                pause = self._failed(trouble(error), pause)
            except Exception as error:
                log.exception("logs.crashed", to=self.to)
                pause = self._failed(f"internal error: {error!r}", pause)
            else:
                if self.problem:
                    log.info("logs.forwarded_again", to=self.to)
                self.problem = ""
                pause = REST * (now() - began) if busy else LOOK_SECONDS
            self._tidy(now())
            self._stop.wait(pause)
        self._save()
        with self._lock:
            for stream in self.ending:
                stream.close()
        self.sender.close()

    def _failed(self, why: str, pause: float) -> float:
        if why != self.problem:
            log.warning("logs.not_forwarded", to=self.to, reason=why)
        self.problem = why
        return min(max(1.0, pause * 2), LONGEST_PAUSE)

    def _pass(self, at: float) -> bool:
        """Send one portion of each pod's output; whether there was any."""
        busy = self._finish()
        with self._lock:
            streams = [*self.ending, *self.streams.values()]
        for stream in streams:
            if self._stop.is_set():
                break
            if lines := stream.read(self.sender.longest, at):
                self._batch = (stream, lines)
                busy = self._finish() or busy
        return busy

    def _finish(self) -> bool:
        """Send what was read; whether there was any."""
        if self._batch is None:
            return False
        stream, lines = self._batch
        while lines and not self._stop.is_set():
            self._since = now()
            try:
                count = self.sender.send(stream.origin, lines)
            finally:
                self._since = 0.0
            stream.advance(lines[:count])
            lines = lines[count:]
            self._batch = (stream, lines) if lines else None
        return True

    def _tidy(self, at: float) -> None:
        """Save the places, and let go of removed pods whose output was sent, or will not be."""
        if at >= self._saved + SAVE_SECONDS:
            self._saved = at
            self._save()
        waiting = self._batch[0] if self._batch is not None else None
        for stream in list(self.ending):
            done = stream is not waiting and stream.behind == 0 and not self.problem
            if done or at >= (stream.ended or at) + LAST_WORDS_SECONDS:
                if stream is waiting:
                    self._batch = None
                    self.sender.close()  # it may have sent a part of it
                stream.close()
                self._count(stream)
                if stream.stays:
                    stream.save()
                with self._lock:
                    self.ending.remove(stream)

    def _save(self) -> None:
        with self._lock:
            streams = [*self.streams.values(), *self.ending]
        for stream in streams:
            self._count(stream)
            if stream.ended is None:
                stream.save()

    def _count(self, stream: Stream) -> None:
        """Add what was sent and lost since the last time."""
        self.sent += stream.sent - stream.counted[0]
        self.lost += stream.lost - stream.counted[1]
        stream.counted = (stream.sent, stream.lost)


class Forwarder:
    """All lanes of one agent. ``default`` are the destinations of pods whose manifest names none; ``hosts``
    are those of syslog servers, empty for any.
    """

    def __init__(
        self, state: StateDirectory, node: str, pods: Callable[[], Iterable[Pod]], clock: Clock,
        recorder: Recorder, *, default: Sequence[str] = (), hosts: Sequence[str] = (), authorities: str = "",
    ) -> None:  # fmt: skip
        self._state = state
        self._node = node
        self._pods = pods
        self._clock = clock
        self._recorder = recorder
        self._default = default
        self._hosts = hosts
        self._authorities = authorities
        self._lanes: dict[str, Lane] = {}
        self._leaving: set[str] = set()
        self._refused: dict[str, dict[str, str]] = {}
        self._told: dict[str, tuple[int, int]] = {}

    async def run(self) -> None:
        """Follow which pods there are, for ever."""
        try:
            while True:
                self.look()
                await self._clock.sleep(SYNC_SECONDS)
        finally:
            await asyncio.to_thread(self._leave)

    def look(self) -> None:
        """Send the output of the pods that there are now, and export how much was."""
        wanted: dict[Which, set[str]] = {}
        self._refused = {}
        for pod in self._pods():
            if pod.instance in self._leaving:
                continue
            manifest = pod.manifest or pod.target
            if manifest is None:
                for to, lane in self._lanes.items():
                    for which in lane.of(pod.instance):
                        wanted.setdefault(which, set()).add(to)
                continue
            asked = elsewhere(manifest.logs.to or self._default)
            for process in (MAIN, *(each.name for each in manifest.sidecars)):
                origin = Origin(self._node, pod.instance, manifest.id, pod.record.owner, process)
                wanted[pod.instance, process] = {each for each in asked if self._add(origin, each)}
        for to, lane in list(self._lanes.items()):
            streams = [which for which in lane.streams if which[0] not in self._leaving]
            lane.end([which for which in streams if to not in wanted.get(which, ())], stays=True)
            self._export(lane)
            if lane.idle:
                lane.stop()
                del self._lanes[to], self._told[to]

    @asynccontextmanager
    async def ending(self, instance: str) -> AsyncIterator[None]:
        """Hold what is left of a pod, whose folder is removed inside, until it was sent."""
        self._leaving.add(instance)
        try:
            for lane in list(self._lanes.values()):
                await asyncio.to_thread(lane.end, lane.of(instance))
            yield
        finally:
            self._leaving.discard(instance)

    def of(self, instance: str) -> list[Forwarded]:
        """How the output of a pod is forwarded, for people."""
        found = [
            Forwarded(
                to=to,
                process="" if which[1] == MAIN else which[1],
                sent=stream.sent,
                lost=stream.lost,
                behind=stream.behind,
                problem=lane.told,
            )
            for to, lane in list(self._lanes.items())
            for which, stream in sorted(lane.streams.items())
            if which[0] == instance
        ]
        refused = self._refused.get(instance, {})
        return found + [Forwarded(to=to, problem=why) for to, why in refused.items()]

    def _add(self, origin: Origin, to: str) -> bool:
        lane = self._lanes.get(to)
        if lane is None:
            destination = parsed(to)
            listed = to in self._default or destination.host in self._hosts
            why = ""
            if destination.host and self._hosts and destination.host not in self._hosts:
                why = f"agent.log_hosts of this node does not list {destination.host}"
            elif to not in self._default and len(self._lanes) >= MOST_DESTINATIONS:
                why = f"this node sends logs to {MOST_DESTINATIONS} other destinations already"
            if why:
                self._refused.setdefault(origin.instance, {})[to] = why
                return False
            lane = self._lanes[to] = Lane(to, senders.of(destination, self._authorities, listed=listed))
            lane.begin()
        if (origin.instance, origin.process) not in lane.streams:
            folder, files = self._state.directory(origin.instance), self._state.logs(origin.instance)
            lane.add(Stream(origin, folder, files if origin.process == MAIN else files / origin.process, to))
        return True

    def _export(self, lane: Lane) -> None:
        kind = parsed(lane.to).kind
        sent, lost = self._told.get(lane.to, (0, 0))
        self._told[lane.to] = (lane.sent, lane.lost)
        self._recorder.count("farmd_log_bytes_sent_total", lane.sent - sent, to=kind)
        self._recorder.count("farmd_log_bytes_lost_total", lane.lost - lost, to=kind)

    def _leave(self) -> None:
        for lane in self._lanes.values():
            lane.stop()
        for lane in self._lanes.values():
            lane.join()
        self._lanes = {}
