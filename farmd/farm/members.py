"""The members that share the items of one kind, and whom each item prefers (R7, R9, R11).

Members are the farms that are present, know the kind and, where farms share its items by a selector, bear
the same one. An item prefers one of those that know all the features that it needs, so that nothing is
ever given to a farm that may not work on it. A member is settled, and may receive items, once it was seen
for a while.
"""

from __future__ import annotations

from collections.abc import Mapping

from farmd.farm.model import PARTITIONED, FarmSettings, Item, Peer
from farmd.farm.preference import preferred
from store.cache import PrefixCache
from store.farms import Member
from store.ports import Clock

SLICE = 2000
SHUN_SECONDS = 10.0

Features = tuple[tuple[str, frozenset[str]], ...]
"""Members by name with the features that they know."""


class Members:
    """Peers of one farm for one kind, as they come and go."""

    def __init__(self, kind: str, settings: FarmSettings, farms: PrefixCache[Member], clock: Clock) -> None:
        self._kind = kind
        self._settings = settings
        self._farms = farms
        self._clock = clock
        self._since: dict[str, float] = {}
        self._shunned: dict[str, float] = {}
        self._preferred: dict[str, str] = {}
        self._needs: dict[str, tuple[str, ...]] = {}
        self._preferred_by: Features = ()

    def peers(self) -> dict[str, Peer]:
        """All members by name, this farm included as soon as it is present."""
        now = self._clock.mono()
        peers = {}
        for stored in self._farms.entries.values():
            member = stored.record
            alike = self._kind not in PARTITIONED or member.selector == self._settings.selector
            if self._kind in member.kinds and alike:
                since = self._since.setdefault(member.session, now)
                settled = member.id == self._settings.name or now - since >= self._settings.stable
                peers[member.id] = Peer(
                    member.id,
                    member.session,
                    settled and now >= self._shunned.get(member.session, now),
                    member.draining,
                    frozenset(member.features),
                )
        sessions = {peer.session for peer in peers.values()}
        self._since = {session: at for session, at in self._since.items() if session in sessions}
        self._shunned = {session: at for session, at in self._shunned.items() if session in sessions}
        return peers

    def shun(self, peer: Peer) -> None:
        """It could not receive: offer it nothing for a while."""
        self._shunned[peer.session] = self._clock.mono() + SHUN_SECONDS

    async def prefer(self, items: Mapping[str, Item], peers: Mapping[str, Peer]) -> Mapping[str, str]:
        """The preferred member of each item; computed anew only where members or needs changed.

        This farm always counts itself, so that all agree also before it sees its own presence.
        """
        able = {peer.id: peer.features for peer in peers.values() if not peer.draining}
        able.setdefault(self._settings.name, frozenset(self._settings.features))
        members = tuple(sorted(able.items()))
        if members != self._preferred_by:
            self._preferred, self._needs, self._preferred_by = {}, {}, members
        everybody = tuple(able)
        missing = [
            item
            for item in items.values()
            if item.id not in self._preferred or self._needs.get(item.id, ()) != item.needs
        ]
        for position, item in enumerate(missing):
            if position % SLICE == SLICE - 1:
                await self._clock.sleep(0)
            if item.needs:
                self._needs[item.id] = item.needs
                knowing = [name for name in everybody if able[name].issuperset(item.needs)]
                self._preferred[item.id] = preferred(item.id, knowing)
            else:
                self._needs.pop(item.id, None)
                self._preferred[item.id] = preferred(item.id, everybody)
        for gone in [item for item in self._preferred if item not in items]:
            del self._preferred[gone]
            self._needs.pop(gone, None)
        return self._preferred
