"""An API server of one resource in memory, in virtual time, that fails as a test says: for informers.

It stands where the transport does; the real one cannot be told to interleave its failures.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from farmd.kubernetes.errors import Forbidden, Gone, NotFound, TooManyRequests, Unavailable
from farmd.kubernetes.transport import ApiRequest
from tests.virtual import VirtualClock

ERRORS = {"forbidden": Forbidden, "missing": NotFound, "away": Unavailable, "throttled": TooManyRequests}


@dataclass
class State:
    """What etcd holds: a restore goes back to a copy of it."""

    version: int = 100
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    compacted: int = 0


class ModelApiServer:
    """``send`` lists, ``watch`` watches; tests call the other methods."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.state = State()
        self.saved = State()
        self.trouble = self.retry_after = ""
        self.lists = self.refused = 0
        self.page = 2
        self._uids = 0
        self._pages: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._watches: list[_Watch] = []

    def write(self, name: str, *, anew: bool = False) -> dict[str, Any]:
        """Create, change or replace an object; as the response has it."""
        old = self.state.objects.get(name)
        if anew and old is not None:
            self.delete(name)
            old = None
        self.state.version += 1
        if old is None:
            self._uids += 1
        uid = old["metadata"]["uid"] if old is not None else f"u{self._uids}"
        meta = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(self.state.version)}
        self.state.objects[name] = {"metadata": meta}
        self._tell("ADDED" if old is None else "MODIFIED", self.state.objects[name])
        return self.state.objects[name]

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        if (old := self.state.objects.pop(name, None)) is None:
            return
        self.state.version += 1
        self._tell("DELETED", {"metadata": {**old["metadata"], "resourceVersion": str(self.state.version)}})

    def bookmark(self) -> None:
        """Tell every watch how far it is."""
        meta = {"resourceVersion": str(self.state.version)}
        self._send({"type": "BOOKMARK", "object": {"metadata": meta}})

    def swap(self) -> None:
        """Two changes whose events come in the wrong order."""
        for watch in self._watches:
            watch.held = []
        self.write("a")
        self.write("b")
        for watch in self._watches:
            held, watch.held = watch.held or [], None
            for event in reversed(held):
                watch.lines.put_nowait(event)

    def compact(self) -> None:
        """Forget all versions; pages that were begun are gone, too."""
        self.state.compacted = self.state.version
        self._pages.clear()

    def cut(self) -> None:
        """Break all watches."""
        for watch in self._watches:
            watch.lines.put_nowait(None)

    def silence(self) -> None:
        """The watches stay open and tell nothing any more."""
        self._watches.clear()

    def save(self) -> None:
        """Keep what a later ``restore`` goes back to."""
        self.saved = copy.deepcopy(self.state)

    def restore(self) -> None:
        """An earlier state; everything in flight is lost."""
        self.cut()
        self._pages.clear()
        self.state = copy.deepcopy(self.saved)

    async def send(self, request: ApiRequest, timeout: float) -> bytes:
        """A page of the list."""
        await self._clock.sleep(0.01)
        self._refuse()
        params = dict(request.params)
        self.lists += 1
        size = self.page if "limit" in params else len(self.state.objects)
        if (token := params.get("continue")) is None:
            version, rest = self.state.version, list(self.state.objects.values())
        elif token in self._pages:
            version, rest = self._pages.pop(token)
        else:
            raise Gone("the page is forgotten", status=410)
        meta = {"resourceVersion": str(version)}
        if rest[size:]:
            meta["continue"] = f"{version}-{len(rest)}-{self.lists}"
            self._pages[meta["continue"]] = (version, rest[size:])
        return json.dumps({"metadata": meta, "items": rest[:size]}).encode()

    @asynccontextmanager
    async def watch(self, request: ApiRequest, timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Events from the version that the request names."""
        await self._clock.sleep(0.01)
        self._refuse()
        params = dict(request.params)
        version, watch = int(params["resourceVersion"]), _Watch()
        if version > self.state.version:
            raise Unavailable("Too large resource version", status=504)
        if version < self.state.compacted:
            watch.put({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}})
        for at, event in self.state.log:
            if at > version:
                watch.put(event)
        self._watches.append(watch)
        timers = [asyncio.ensure_future(self._end(watch, int(params["timeoutSeconds"]), b""))]
        timers.append(asyncio.ensure_future(self._end(watch, timeout, None)))
        try:
            yield watch.read()
        finally:
            if watch in self._watches:
                self._watches.remove(watch)
            for timer in timers:
                timer.cancel()

    async def _end(self, watch: _Watch, seconds: float, line: bytes | None) -> None:
        await self._clock.sleep(seconds)
        if line is None or watch in self._watches:
            watch.lines.put_nowait(line)

    def _refuse(self) -> None:
        if self.trouble:
            self.refused += 1
            error = ERRORS[self.trouble](self.trouble, status=0 if self.trouble == "away" else 403)
            error.fields["retry_after"] = self.retry_after
            raise error

    def _tell(self, kind: str, found: dict[str, Any]) -> None:
        event = {"type": kind, "object": copy.deepcopy(found)}
        self.state.log.append((self.state.version, event))
        self._send(event)

    def _send(self, event: dict[str, Any]) -> None:
        for watch in self._watches:
            watch.put(event)


class _Watch:
    """Lines on their way: ``None`` breaks the connection, an empty one ends the answer."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.held: list[bytes] | None = None

    def put(self, event: dict[str, Any]) -> None:
        """On its way, or held back by ``swap``."""
        line = json.dumps(event).encode()
        if self.held is not None:
            self.held.append(line)
        else:
            self.lines.put_nowait(line)

    async def read(self) -> AsyncIterator[bytes]:
        """The lines."""
        while line := await self.lines.get():
            yield line
        if line is None:
            raise Unavailable("cut")
