"""Reports an object's troubles by events on it, which ``kubectl describe`` shows.

Only warnings, each reason of a job, or each message, at most once in ten minutes, and only after all other
requests. Events may be lost: no decision reads them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec
import structlog

from farmd.kubernetes.errors import KubernetesError
from farmd.kubernetes.objects import EVENTS, Owned, Resource
from farmd.kubernetes.pace import Priority
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from store.errors import CredentialInvalid
from store.ports import Clock
from store.times import rfc3339

log = structlog.get_logger()

AGAIN_SECONDS = 600.0
MOST_WAITING = 256
LONGEST_MESSAGE = 1000
COMPONENT = "farmd"


class Events:
    """The ``EventRecorder`` (``farmd.kubernetes.jobs.protocols``) of the jobs of one resource.

    ``run`` sends what was recorded.
    """

    def __init__(self, transport: KubernetesTransport, resource: Resource, clock: Clock) -> None:
        self._transport, self._resource, self._clock = transport, resource, clock
        self._waiting: asyncio.Queue[ApiRequest] = asyncio.Queue(MOST_WAITING)
        self._told: dict[tuple[str, str], float] = {}

    def event(
        self,
        of: Owned,
        kind: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        *,
        anew: bool = False,
    ) -> None:
        """Record one event on a job, unless it is no trouble, was recorded already, or there are too many.

        ``anew``: also record another message of the same reason.
        """
        meta, now = of.metadata, self._clock.mono()
        told = meta.uid, f"{reason} {message}" if anew else reason
        if now < self._told.get(told, 0.0):
            return
        if len(self._told) % 1024 == 0:  # now and then: an outage tells thousands
            self._told = {key: until for key, until in self._told.items() if until > now}
        self._told[told] = now + AGAIN_SECONDS
        log.info(
            "kubernetes.event",
            namespace=meta.namespace,
            name=meta.name,
            type=kind,
            reason=reason,
            text=message,
        )
        if kind != "Warning" or self._waiting.full():
            return
        body = msgspec.json.encode(self._body(of, kind, reason, message))
        path = EVENTS.path(meta.namespace)
        self._waiting.put_nowait(
            ApiRequest("POST", path, body=body, resource="events", priority=Priority.EVENT, key=meta.uid)
        )

    async def run(self) -> None:
        """Send events until cancelled; one that is refused is lost."""
        while True:
            request = await self._waiting.get()
            try:
                await self._transport.send(request)
            except (KubernetesError, CredentialInvalid) as error:
                log.debug("kubernetes.event_lost", error=error.message)

    def _body(self, of: Owned, kind: str, reason: str, message: str) -> dict[str, Any]:
        meta, at = of.metadata, rfc3339(self._transport.now())
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"generateName": f"{meta.name}.", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": self._resource.api_version,
                "kind": self._resource.kind,
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message[:LONGEST_MESSAGE],
            "source": {"component": COMPONENT},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
