"""A farm's presence among the members (R7): written under its session, and again where it was lost."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec.structs
import structlog

from farmd.cache.caches import Caches
from farmd.farm.errors import TRANSIENT
from farmd.farm.features import Features
from farmd.runtime.wake import wait
from store import presence
from store.consul.client import ConsulClient
from store.farms import Member
from store.keys import Keys
from store.ports import Clock
from store.sessions import Session

log = structlog.get_logger()


class Membership:
    """One farm's record in ``farms/``."""

    def __init__(
        self,
        member: Member,
        features: Features,
        client: ConsulClient,
        keys: Keys,
        caches: Caches,
        clock: Clock,
    ) -> None:
        self._features = features
        self._changed = asyncio.Event()
        features.watch(self._changed.set)
        self._client = client
        self._caches = caches
        self._clock = clock
        self._announced = member
        self._announced_at = 0
        self._key = keys.farm(member.id)

    async def announce(self, session: Session, *, draining: bool = False, starting: bool = False) -> None:
        """Write this farm's presence, from now on.

        Raises:
            Conflict: another live farm has this name.
        """
        await self._write(session, since=self._clock.now(), draining=draining, starting=starting)

    async def _write(self, session: Session, **changed: Any) -> None:
        self._announced = msgspec.structs.replace(
            self._announced, session=session.id, **self._says(), **changed
        )
        self._announced_at = await presence.announce(
            self._client, self._key, self._announced, session.id, clock=self._clock
        )

    async def stay(self, session: Session) -> None:
        """Write the presence again where it was deleted or overwritten, or what it says has changed."""
        while True:
            await wait(self._changed, self._clock, presence.LOOK_SECONDS)
            self._changed.clear()
            seen = self._caches.farms.entries.get(self._key)
            says = msgspec.structs.replace(self._announced, **self._says())
            alike = says == self._announced
            if alike and seen is not None and seen.index == self._announced_at:
                continue
            try:
                if says.features != self._announced.features:
                    await self.announce(session, draining=self._announced.draining)
                elif not alike:
                    await self._write(session)  # what it reports changes nothing for others
                elif not await presence.stands(self._client, self._key, self._announced, session.id):
                    log.warning("farm.presence_lost", farm=self._announced.id)
                    await self.announce(session, draining=self._announced.draining)
            except TRANSIENT as error:
                log.warning("farm.not_present", code=error.code, error=error.message)

    def _says(self) -> dict[str, Any]:
        """What changes in the record while the farm runs."""
        features = self._features
        return {
            "features": sorted(features()),
            "clusters": dict(features.reports),
            "denied": features.denied,
        }
