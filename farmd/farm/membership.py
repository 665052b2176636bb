"""A farm's presence among the members (R7): written under its session, and again where it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec.structs
import structlog

from farmd.cache.caches import Caches
from farmd.farm.errors import TRANSIENT
from farmd.runtime.wake import wait
from store import presence
from store.consul.client import ConsulClient
from store.farms import ClusterReport, Member
from store.keys import Keys
from store.ports import Clock
from store.sessions import Session

# The features that a farm knows now, which items may need of it (R11), and what it reports beside them.
#
# Those of its version and of its settings stay. A kind of work adds one while it can do what that means,
# such as reach another system, and withdraws it when it cannot: then the farm gives up the items that need
# it, and another farm takes them.


class Features:
    """A function that returns them; one for each farm."""

    def __init__(self, lasting: Iterable[str] = ()) -> None:
        self._lasting = frozenset(lasting)
        self._added: frozenset[str] = frozenset()
        self.reports: dict[str, ClusterReport] = {}
        self.denied = ""
        self._watchers: list[Callable[[], None]] = []

    def __call__(self) -> frozenset[str]:
        """All features at this moment."""
        return self._lasting | self._added

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after each change."""
        self._watchers.append(changed)

    def add(self, feature: str) -> None:
        """The farm knows it from now on."""
        self._change(self._added | {feature})

    def withdraw(self, feature: str) -> None:
        """The farm does not know it any more, unless its version or its settings say so."""
        self._change(self._added - {feature})

    def report(self, name: str, report: ClusterReport) -> None:
        """What the farm says of a cluster that it works in from now on."""
        if self.reports.get(name) != report:
            self.reports[name] = report
            self._tell()

    def deny(self, denied: str) -> None:
        """What the farm's token lacks from now on."""
        if self.denied != denied:
            self.denied = denied
            self._tell()

    def _change(self, added: frozenset[str]) -> None:
        if added != self._added:
            self._added = added
            self._tell()

    def _tell(self) -> None:
        for changed in self._watchers:
            changed()


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
