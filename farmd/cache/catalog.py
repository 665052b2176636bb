"""The entries of Consul's catalogue with the cluster's mark, for all workers of a farm.

One query per farm is parked, whatever the number of services and nodes (R23): it returns when somebody
registers or removes an instance. Checks and nodes are looked at once a minute besides. What must never break:
a worker that was refused reads again before it plans (R12), and an own commit is not forgotten for an answer
of before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from farmd.runtime.wake import Wake, wait
from store import catalog
from store.catalog import Change, Check, Node, Standing, alike, same
from store.consul.client import ConsulClient
from store.errors import StoreError
from store.ports import Clock

log = structlog.get_logger()

PARKED_SECONDS = 30.0
LOOK_SECONDS = 60.0
# Others' commits wake every farm: each reads what they left at most so often.
PAUSE_SECONDS = 10.0
RETRY_SECONDS = 5.0
MOST_COMMITS = 1_000


class View:
    """The nodes and entries of one cluster, as this farm read or wrote them last.

    ``changed`` is called with the ids of services whose entries somebody else changed.
    """

    def __init__(
        self,
        client: ConsulClient,
        cluster: str,
        clock: Clock,
        changed: Callable[[set[str]], None],
    ) -> None:
        self._client, self._cluster, self._clock = client, cluster, clock
        self._changed = changed
        self.nodes: dict[str, Node] = {}
        self.used: set[str] = set()
        """The nodes on which anything is registered, by whomever."""
        self.settled: set[str] = set()
        """The services whose entries are as their worker of this farm wants them."""
        self._entries: dict[str, dict[str, Standing]] = {}
        self._doubted: set[str] = set()
        self._odd: set[str] = set()
        self._lock = asyncio.Lock()
        self._reads = 0
        self._stale = True
        self._own: dict[str, int] = {}
        self._commits = set[int]()
        """The indexes of own commits that the parked query may return with."""
        self.wake = Wake()
        """Set when the view is needed, or not any more."""

    def services(self) -> Mapping[str, Mapping[str, Standing]]:
        """The entries of all services, by the service's id."""
        return self._entries

    def of(self, service: str) -> dict[str, Standing]:
        """The entries of a service, by their ids."""
        return dict(self._entries.get(service, {}))

    def expire(self) -> None:
        """What was read before counts no more (R15)."""
        self._stale = True

    def doubt(self, nodes: Iterable[str]) -> None:
        """A write on these nodes was refused, or is: they are looked at whatever mark they have."""
        self._stale = True
        self._doubted.update(nodes)

    async def fresh(self) -> None:
        """Return once what it shows was read after it expired last.

        Raises:
            StoreError: Consul did not tell.
        """
        if self._stale:
            await self._read(deep=True)
            self.wake.set()

    async def run(self, needed: Callable[[], bool]) -> None:
        """Follow the catalogue while that is needed, until cancelled."""
        index, looked, away = 0, self._clock.mono(), False
        while True:
            self.wake.clear()
            if not needed():
                await wait(self.wake, self._clock, None)
                index, looked = 0, self._clock.mono()
                continue
            try:
                began = index == 0
                index, moved = await self._parked(index, away=away)
                due = self._clock.mono() - looked >= LOOK_SECONDS
                away = moved or due or self._stale
                if away:
                    await self._read(deep=moved or self._stale)
                    looked = self._clock.mono()
                    await self._clock.sleep(PAUSE_SECONDS if moved and not began else 0.0)
            except StoreError as error:
                log.debug("catalog.unread", error_code=error.code, error=error.message)
                index = 0
                await self._clock.sleep(RETRY_SECONDS)

    async def _parked(self, index: int, *, away: bool) -> tuple[int, bool]:
        """Wait for a change that this farm did not make; the new index, and whether there was one.

        ``away``: nobody waited for a while, so that an own commit may hide what others changed before it.
        """
        marked = catalog.marked(self._cluster)
        found, _ = await self._client.catalog(
            "catalog/services", catalog.NAMES, marked, index=index, wait=PARKED_SECONDS
        )
        # Where it begins, or an index fell, nobody knows what changed before.
        own = found in self._commits and not away
        self._commits = {commit for commit in self._commits if commit > found}
        return found, index == 0 or found < index or (found != index and not own)

    # -- reading ---------------------------------------------------------------------------------
    async def _read(self, *, deep: bool) -> None:
        """Read checks and nodes, and with ``deep`` also what is registered on each node."""
        asked = self._reads
        async with self._lock:
            if self._reads > asked:
                return  # a later read than this one is over
            self._reads += 1
            self._own.clear()
            stale, self._stale = self._stale, False
            try:
                nodes = self._well_named(await catalog.nodes(self._client, self._cluster))
                # Without their mark, or with another one, they are in no answer that asks for it.
                self._doubted.update(self.nodes.keys() - nodes.keys())
                checks = await catalog.checks(self._client, self._cluster) if nodes else {}
                nodes = {name: catalog.judged(node, checks) for name, node in nodes.items()}
                if deep or stale or nodes.keys() != self._owned() or self._others(checks):
                    await self._read_services(nodes, checks)
                else:
                    self._take(self._with_checks(checks), nodes, self.used)
            except StoreError:
                self._stale = True
                raise

    def _well_named(self, found: dict[str, Node]) -> dict[str, Node]:
        """Without nodes that somebody else made and gave this cluster's mark."""
        odd = {name for name in found if not catalog.named(self._cluster, name)}
        if odd - self._odd:
            log.warning("catalog.foreign_nodes_with_our_mark", nodes=sorted(name[:80] for name in odd)[:5])
        self._odd = odd
        return {name: node for name, node in found.items() if name not in odd}

    def _owned(self) -> set[str]:
        return {name for name, node in self.nodes.items() if catalog.owns(self._cluster, node)}

    def _others(self, found: Mapping[tuple[str, str], Check]) -> bool:
        """Whether there are checks of other entries than it shows."""
        known = {catalog.check_id(ident) for entries in self._entries.values() for ident in entries}
        ours = (name for _, name in found if catalog.parts(self._cluster, name.removeprefix("service:")))
        return any(name not in known for name in ours)

    async def _read_services(self, nodes: dict[str, Node], checks: dict[tuple[str, str], Check]) -> None:
        found: dict[str, dict[str, Standing]] = {}
        used = set[str]()
        doubted, self._doubted = self._doubted, set()
        checks = checks | await catalog.checks_on(self._client, doubted - nodes.keys())
        for name, told in (await catalog.services(self._client, {*nodes, *doubted})).items():
            if told is None:
                nodes.pop(name, None)
                continue
            node, registered = told
            nodes[name] = catalog.judged(node, checks)
            used.update([name] if registered and catalog.owns(self._cluster, nodes[name]) else [])
            for ident, service in registered.items():
                parts = catalog.parts(self._cluster, ident)
                if parts is not None and catalog.node_name(self._cluster, parts[1]) == name:
                    check = checks.get((name, catalog.check_id(ident)))
                    found.setdefault(parts[0], {})[ident] = Standing(name, service, check)
        self._take(found, nodes, used)

    def _with_checks(self, checks: dict[tuple[str, str], Check]) -> dict[str, dict[str, Standing]]:
        return {
            service: {
                ident: Standing(each.node, each.service, checks.get((each.node, catalog.check_id(ident))))
                for ident, each in entries.items()
            }
            for service, entries in self._entries.items()
        }

    def _take(self, found: dict[str, dict[str, Standing]], nodes: dict[str, Node], used: set[str]) -> None:
        """Show what was read; what this farm wrote meanwhile stays."""
        for ident in self._own:
            service = self._service(ident)
            mine = self._entries.get(service, {}).get(ident)
            if mine is None:
                found.get(service, {}).pop(ident, None)
            else:
                found.setdefault(service, {})[ident] = mine
                nodes.setdefault(mine.node, self.nodes[mine.node])
        turned = {name for name, node in self.nodes.items() if _turned(node, nodes.get(name))}
        before, self._entries, self.nodes, self.used = self._entries, found, nodes, used
        different = {
            service
            for service in before.keys() | found.keys()
            if _differ(before.get(service, {}), found.get(service, {}))
            or not turned.isdisjoint(each.node for each in found.get(service, {}).values())
        }
        if different:
            self._changed(different)

    def _service(self, ident: str) -> str:
        """The id of the service that an entry belongs to; empty: it is not this cluster's."""
        return (catalog.parts(self._cluster, ident) or ("",))[0]

    # -- own commits -----------------------------------------------------------------------------
    def apply(self, changes: Sequence[Change], index: int) -> None:
        """Show what was committed at that index."""
        if len(self._commits) >= MOST_COMMITS:
            self._commits.clear()  # most of them changed checks alone; the next look is one more than needed
        self._commits.add(index)
        for change in changes:
            before, after = change.before, change.after
            ident = (after or before).service.id  # type: ignore[union-attr]
            service = self._service(ident)
            self._own[ident] = index
            if after is None:
                self._entries.get(service, {}).pop(ident, None)
                continue
            if change.address:
                meta = catalog.meta_of(self._cluster)
                self.nodes[after.node] = Node(after.node, change.address, meta, modify_index=index)
            self.used.add(after.node)
            self._entries.setdefault(service, {})[ident] = change.committed(index)
        self.wake.set()

    def removed(self, node: str) -> None:
        """A node was deleted."""
        self.nodes.pop(node, None)
        self.used.discard(node)

    def counted(self, services: Iterable[str]) -> dict[str, int]:
        """How many entries of these services there are, by the status of their checks."""
        found = {"passing": 0, "critical": 0}
        for service in services:
            for each in self._entries.get(service, {}).values():
                status = each.check.status if each.check is not None else "passing"
                found["passing" if status == "passing" else "critical"] += 1
        return found


def _differ(one: Mapping[str, Standing], other: Mapping[str, Standing]) -> bool:
    return one.keys() != other.keys() or any(
        not (same(each, other[ident]) and alike(each.check, other[ident].check))
        for ident, each in one.items()
    )


def _turned(one: Node, other: Node | None) -> bool:
    """Whether somebody else changed whose node it is."""
    return other is not None and (one.meta, one.id, one.serf) != (other.meta, other.id, other.serf)
