"""The members that share the items of one kind, and the member that each item is meant for (R7, R9, R11).

Members are the farms that are present, know the kind and, where farms choose its items by a selector, have
the same selector. An item goes to a member that knows all features that the item needs, so no farm gets an
item that it may not work on. A member is settled, and may receive items, once it was present for a while
after it has read everything: only then it begins to adopt what it is handed.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec.structs
import structlog

from farmd import kinds
from farmd.cache.caches import Caches
from farmd.farm.errors import TRANSIENT
from farmd.farm.plan import FarmSettings, Item, Peer
from farmd.runtime.wake import wait
from store import presence
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.farms import ClusterReport, Member
from store.keys import Keys
from store.ports import Clock
from store.sessions import Session

# The member that should hold each item: rendezvous hashing with bounded loads (R7, R9).
#
# Every farm computes the same answer from the same members and items, without messages. Each item ranks the
# members that may have it. A member has room for its even share; where more items prefer it, it keeps those
# that it ranks highest, and the others go to their next choice. Both sides rank by one score, so the answer
# does not depend on the order of the computation (a stable matching), and few items change their member
# when a member comes or goes.


def score(member: str, item: str) -> bytes:
    """The weight of a pair; the member with the highest one is preferred."""
    return hashlib.blake2b(f"{member}/{item}".encode(), digest_size=8).digest()


def ranking(item: str, members: Sequence[str]) -> list[str]:
    """The members, the most preferred first."""
    return sorted(members, key=lambda member: (score(member, item), member), reverse=True)


def preferred(item: str, members: Sequence[str]) -> str:
    """The most preferred member; empty without members."""
    if len(members) == 1:
        return members[0]
    return max(members, key=lambda member: (score(member, item), member), default="")


def rooms(wanted: Mapping[str, int], loads: Mapping[str, int]) -> dict[str, int]:
    """How many of the wanted items each member gets, so that the loads are as even as possible.

    ``wanted`` counts the items that prefer each member, ``loads`` the items that it has already. The
    remainder of an uneven division goes to the members that most items prefer.
    """
    left = sum(wanted.values())
    level = _level(left, sorted(loads[member] for member in wanted))
    rooms = {member: max(0, level - loads[member]) for member in wanted}
    extras = left - sum(rooms.values())
    eager = sorted(
        wanted, key=lambda member: (loads[member] > level, -loads[member] - wanted[member], member)
    )
    for member in eager[:extras]:
        rooms[member] += 1
    return rooms


def _level(count: int, loads: Sequence[int]) -> int:
    """The highest even load that ``count`` more items give to the members with the lowest loads."""
    for filled in range(len(loads), 0, -1):
        level = (count + sum(loads[:filled])) // filled
        if level >= loads[filled - 1]:
            return level
    return 0


class Shares:
    """The items of one group of members, by the preferred member, shared out within each member's room."""

    def __init__(self, wanted: Mapping[str, list[str]], room: Mapping[str, int]) -> None:
        self._members = tuple(wanted)
        self._room = room
        self._items = {member: list(items) for member, items in wanted.items()}
        self._ranked: dict[str, list[tuple[bytes, str]]] = {}

    def even(self) -> bool:
        """Whether each item can go to the member that it prefers."""
        return all(len(items) <= self._room[member] for member, items in self._items.items())

    def rank(self, member: str) -> None:
        """Rank a member's items, which may take a while; otherwise ``moved`` does it."""
        self._heap(member)

    def moved(self) -> dict[str, str]:
        """The items that cannot go to the member that they prefer, with the member that they go to."""
        moved: dict[str, str] = {}
        homeless = [
            (item, member)
            for member in self._members
            for item in self._turned_away(member, len(self._items[member]) - self._room[member])
        ]
        while homeless:
            item, refused_by = homeless.pop()
            order = ranking(item, self._members)
            for member in order[order.index(refused_by) + 1 :]:
                loser = self._offer(item, member)
                if loser != item:
                    moved[item] = member
                    if loser is not None:
                        homeless.append((loser, member))
                    break
        return moved

    def _turned_away(self, member: str, surplus: int) -> list[str]:
        if surplus <= 0:
            return []
        ranked = self._heap(member)
        return [heapq.heappop(ranked)[1] for _ in range(surplus)]

    def _offer(self, item: str, member: str) -> str | None:
        """Give a member one more item; returns the item that it loses in exchange, None if it had room."""
        ranked = self._heap(member)
        entry = (score(member, item), item)
        if len(ranked) < self._room[member]:
            heapq.heappush(ranked, entry)
            return None
        return heapq.heappushpop(ranked, entry)[1]

    def _heap(self, member: str) -> list[tuple[bytes, str]]:
        """A member's items as a heap, the lowest rank first; built when first needed."""
        if member not in self._ranked:
            ranked = [(score(member, item), item) for item in self._items[member]]
            heapq.heapify(ranked)
            self._ranked[member] = ranked
        return self._ranked[member]


SLICE = 1000
SHUN_SECONDS = 10.0

NeededFeatures = tuple[tuple[str, frozenset[str]], ...]
"""Members by name with the features that they know."""


@dataclass(eq=False)
class Members:
    """The members that share one kind, as one farm sees them.

    ``preferred`` maps each item to the member that it prefers, ``targets`` to the member that should hold it
    so that loads are even; "" where no member knows the features that the item needs.
    """

    kind: str
    settings: FarmSettings
    features: Callable[[], frozenset[str]]
    farms: PrefixCache[Member]
    clock: Clock
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _shunned: dict[str, float] = field(default_factory=dict, init=False)
    preferred: dict[str, str] = field(default_factory=dict, init=False)
    _needs: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    targets: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._preferred_by: NeededFeatures = ()

    def peers(self) -> dict[str, Peer]:
        """All members by name, this farm included as soon as it is present."""
        now = self.clock.mono()
        peers = {}
        for stored in self.farms.entries.values():
            member = stored.record
            alike = not kinds.selectable(self.kind) or member.selector == self.settings.selector
            if self.kind in member.kinds and alike:
                since = now if member.starting else self._since.setdefault(member.session, now)
                settled = member.id == self.settings.name or now - since >= self.settings.stable
                peers[member.id] = Peer(
                    member.id,
                    member.session,
                    settled and not member.starting and now >= self._shunned.get(member.session, now),
                    member.draining,
                    frozenset(member.features),
                    since,
                    member.starting,
                )
        sessions = {peer.session for peer in peers.values()}
        self._since = {session: at for session, at in self._since.items() if session in sessions}
        self._shunned = {session: at for session, at in self._shunned.items() if session in sessions}
        return peers

    def shun(self, peer: Peer) -> None:
        """Offer a peer no items for a while, because it could not receive some."""
        self._shunned[peer.session] = self.clock.mono() + SHUN_SECONDS

    async def share(
        self, items: Mapping[str, Item], peers: Mapping[str, Peer], *, draining: bool = False
    ) -> None:
        """Compute ``preferred`` and ``targets`` again if members, items or needs changed.

        This farm counts itself unless it is ``draining``, so that all farms agree even before it has seen its
        own presence record.
        """
        able = {peer.id: peer.features for peer in peers.values() if not peer.draining}
        if draining:
            able.pop(self.settings.name, None)
        else:
            able.setdefault(self.settings.name, self.features())
        if await self._prefer(items, able):
            self.targets = await self._dealt(items, able)

    async def _prefer(self, items: Mapping[str, Item], able: Mapping[str, frozenset[str]]) -> bool:
        """Update the preferred member of each item; whether any changed."""
        members = tuple(sorted(able.items()))
        changed = members != self._preferred_by
        if changed:
            self.preferred, self._needs, self._preferred_by = {}, {}, members
        missing = [
            item
            for item in items.values()
            if item.id not in self.preferred or self._needs.get(item.id, ()) != item.needs
        ]
        for position, item in enumerate(missing):
            if position % SLICE == SLICE - 1:
                await self.clock.sleep(0)
            if item.needs:
                self._needs[item.id] = item.needs
            else:
                self._needs.pop(item.id, None)
            self.preferred[item.id] = preferred(item.id, _knowing(able, item.needs))
        gone = self.preferred.keys() - items.keys()
        for name in gone:
            del self.preferred[name]
            self._needs.pop(name, None)
        return changed or bool(missing or gone)

    async def _dealt(self, items: Mapping[str, Item], able: Mapping[str, frozenset[str]]) -> dict[str, str]:
        """Share the items with bounded loads, beginning with the items that the fewest members may have."""
        await self.clock.sleep(0)
        groups = self._grouped(items, able)
        targets, loads = dict(self.preferred), dict.fromkeys(able, 0)
        for members in sorted(groups, key=lambda members: (len(members), members)):
            wanted = groups[members]
            room = rooms({member: len(of_it) for member, of_it in wanted.items()}, loads)
            shares = Shares(wanted, room)
            for member in () if shares.even() else members:
                await self.clock.sleep(0)
                shares.rank(member)
            targets.update(shares.moved())
            for member, more in room.items():
                loads[member] += more
        return targets

    def _grouped(
        self, items: Mapping[str, Item], able: Mapping[str, frozenset[str]]
    ) -> dict[tuple[str, ...], dict[str, list[str]]]:
        """Items by the member that they prefer, grouped by the members that may have them."""
        groups: dict[tuple[str, ...], dict[str, list[str]]] = {}
        of: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for item in items.values():
            if (wanted := of.get(item.needs)) is None:
                members = _knowing(able, item.needs)
                wanted = of[item.needs] = groups.setdefault(members, {member: [] for member in members})
            if wanted:
                wanted[self.preferred[item.id]].append(item.id)
        return groups


def _knowing(able: Mapping[str, frozenset[str]], needs: Sequence[str]) -> tuple[str, ...]:
    """Members that know all the features."""
    if not needs:
        return tuple(sorted(able))
    return tuple(sorted(name for name, features in able.items() if features.issuperset(needs)))


# A farm's presence among the members (R7): written under its session, and again where it was lost.


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
