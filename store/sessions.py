"""A Consul session whose validity is measured by the process's own clock (R1, R2).

Consul promises only that a session lives *at least* its TTL after the last renewal that Consul received.
So the session is valid from the time when the last good renewal was *sent*, on the monotonic clock, until
a margin before the TTL. A later good renewal resumes a suspended session. A 404 suspends it at once: a
server that replays its log after a restart does not know its sessions yet. Only a consistent read, which
waits for the end of the replay, proves that the session is lost.

Once a suspended session was renewed and no answer came, it is renewed again only after a read was answered in
time. Renewals that Consul receives while its answers come too late would keep the locks of a process that may
not write, and nobody else would get them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from store.consul.client import ConsulClient
from store.consul.exchange import RENEW_SECONDS
from store.errors import AccessDenied, SessionGone, SessionSuspended, StoreError, StoreUnavailable
from store.ports import Clock, Recorder

log = structlog.get_logger()

MARGIN = 0.1
RENEWALS = 3
"""How often a session is renewed within its TTL."""
RETRY_SECONDS = 1.0
LATE_SECONDS = 0.9 * RENEW_SECONDS
"""What took so long had no answer in time: a connection that is refused or cut ends sooner."""
JOINING = "waiting for a session in Consul"
SUSPENDED = "waiting for Consul: the session was not renewed in time, writes are suspended"
"""What a process lacks without a valid session, for people."""


class Session:
    """One session. ``run`` renews it until it is lost; ``lost`` is then set and stays set.

    ``epoch`` grows each time a suspended session resumes: earlier reads are then too old (R15).
    ``on_resume`` is called at once, before any task can write again, so that no old plan is written.
    ``on_renewed`` is called after each good renewal, with the time at which it was sent.
    """

    def __init__(
        self,
        client: ConsulClient,
        clock: Clock,
        session_id: str,
        ttl: float,
        sent: float,
        recorder: Recorder | None,
        on_resume: Callable[[], None],
        on_renewed: Callable[[float], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._recorder = recorder
        self._good = sent
        self.id = session_id
        self._suspended = self._doubted = self._late = False
        self.ttl = ttl
        self.epoch = 0
        self.lost = asyncio.Event()
        self._on_resume = on_resume
        self._on_renewed = on_renewed

    @classmethod
    async def open(
        cls,
        client: ConsulClient,
        clock: Clock,
        *,
        name: str,
        ttl: float = 10.0,
        lock_delay: float = 0.001,
        session_id: str | None = None,
        recorder: Recorder | None = None,
        on_resume: Callable[[], None] = lambda: None,
        on_renewed: Callable[[float], None] = lambda _: None,
    ) -> Session:
        """Renew ``session_id`` if it still exists, else create a session with ``Behavior=delete``.

        ``ttl`` and ``lock_delay`` are seconds. The default lock-delay of 1 ms is for holders that fence
        all their writes in Consul (R5); 0 would mean Consul's default of 15 s.
        """
        if session_id:
            sent = clock.mono()
            try:
                await _renew(client, session_id)
            except SessionGone:
                log.info("session.not_resumed", reason="it has expired")
            except AccessDenied as error:  # another node of Consul's, another policy: it ends by its TTL
                log.info("session.not_resumed", reason=error.message)
            else:
                return cls(client, clock, session_id, ttl, sent, recorder, on_resume, on_renewed)
        sent = clock.mono()
        created = await client.create_session(name=name, ttl=ttl, lock_delay=lock_delay)
        return cls(client, clock, created, ttl, sent, recorder, on_resume, on_renewed)

    def remaining(self) -> float:
        """Seconds for which writing is still allowed; 0 when suspended, in doubt or lost."""
        if self._doubted or self.lost.is_set():
            return 0.0
        return max(0.0, self._good + self.ttl * (1 - MARGIN) - self._clock.mono())

    @property
    def heard(self) -> float:
        """When the last good renewal was sent, in seconds of the monotonic clock."""
        return self._good

    def valid(self) -> bool:
        """Whether writing is allowed now."""
        return self.remaining() > 0

    def lacks(self) -> str:
        """What its holder waits for before it may write, for people; empty: it may."""
        return "" if self.valid() else SUSPENDED

    def require(self) -> None:
        """Refuse a write that this session may not cover any more.

        Raises:
            SessionSuspended: the session might have expired.
        """
        if not self.valid():
            raise SessionSuspended(
                "the session was not renewed in time, writes are suspended", session=self.id
            )

    async def run(self) -> None:
        """Renew ``RENEWALS`` times within the TTL, after a failure each second. Returns when lost."""
        delay = self.ttl / RENEWALS
        while not self.lost.is_set():
            await self._clock.sleep(delay)
            delay = self.ttl / RENEWALS if await self._renew() else min(RETRY_SECONDS, self.ttl / 10)

    async def _renew(self) -> bool:
        sent = self._clock.mono()
        try:
            if self._suspended and self._late:
                await self._hear()
            asked = self._clock.mono()
            await _renew(self._client, self.id, self._doubt)
        except SessionGone:
            log.warning("session.lost")
            self.lost.set()
            return False
        except StoreError as error:
            log.warning("session.renewal_failed", code=error.code, remaining=round(self.remaining(), 1))
            self._note_suspension()
            return False
        finally:
            self._late = self._clock.mono() - sent > LATE_SECONDS
        if self._recorder is not None:
            self._recorder.observe("farmd_session_renew_seconds", self._clock.mono() - asked)
        self._doubted = False
        # Called after the answer, because validity may have ended while the renewal was under way.
        self._note_suspension()
        self._good = sent
        self._on_renewed(sent)
        if self._suspended and self.valid():
            self._suspended = False
            self.epoch += 1
            self._count("resumed")
            log.info("session.resumed")
            self._on_resume()
        return True

    async def _hear(self) -> None:
        """Read the session, which prolongs nothing.

        Raises:
            SessionGone: there is none. StoreError: no answer, or one that took longer than a renewal may.
        """
        asked = self._clock.mono()
        if await self._client.session_info(self.id, mode="consistent") is None:
            raise SessionGone("the session has expired", session=self.id)
        if self._clock.mono() - asked > LATE_SECONDS:
            raise StoreUnavailable("answers arrive too late", session=self.id)

    def _doubt(self) -> None:
        self._doubted = True
        self._note_suspension()

    def _note_suspension(self) -> None:
        if not self._suspended and not self.valid():
            self._suspended = True
            self._count("suspended")
            log.warning("session.suspended")

    def _count(self, event: str) -> None:
        if self._recorder is not None:
            self._recorder.count("farmd_session_events_total", event=event)

    async def destroy(self) -> None:
        """End the session; with a lock-delay of 1 ms Consul frees its locks at once (R4)."""
        self.lost.set()
        await self._client.destroy_session(self.id)


async def _renew(client: ConsulClient, session: str, doubt: Callable[[], None] = lambda: None) -> None:
    """Renew a session; after a 404 ``doubt`` is called, and then a consistent read.

    Raises:
        SessionGone: the consistent read does not find the session either.
        StoreUnavailable: the read finds the session; renew it again.
    """
    try:
        await client.renew_session(session)
    except SessionGone as error:
        doubt()
        if await client.session_info(session, mode="consistent") is None:
            raise
        raise StoreUnavailable("the session exists, but the server did not know it while starting") from error
