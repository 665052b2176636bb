"""Knative Services as items of work: their uids, from watches of all namespaces that farms work in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from farmd.farm.plan import Item
from farmd.kubernetes.progressive.assembly import owner
from farmd.kubernetes.progressive.objects import RELEASED
from farmd.kubernetes.progressive.watches import KnativeWatches
from farmd.kubernetes.store import version_of


@dataclass(frozen=True, slots=True)
class Where:
    """A service, and where it is watched."""

    watches: KnativeWatches
    namespace: str
    name: str


class ServiceItems:
    """The items of all namespaces (``farmd.farm.kind.Items``)."""

    def __init__(self, needs: tuple[str, ...]) -> None:
        self.known: dict[str, Where] = {}
        self.watches: Sequence[KnativeWatches] = ()
        self._needs = needs
        self._items: dict[str, Item] = {}
        self._uids: dict[tuple[str, str], set[str]] = {}
        self._subscribers: list[Callable[[set[str], bool], None]] = []

    def items(self) -> Mapping[str, Item]:
        """All services that are work."""
        return self._items

    def trusted(self) -> bool:
        """Whether every service was known once: a list that failed proves nothing."""
        return bool(self.watches) and all(each.synced for each in self.watches)

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the changed items, and with whether the change can affect claiming."""
        self._subscribers.append(changed)

    def subscribe_gone(self, gone: Callable[[set[str]], None]) -> None:
        """Call back with the items that are gone."""
        self.subscribe(lambda changed, _: gone(changed - self._items.keys()))

    def look(self, namespace: str, name: str) -> None:
        """Something of a service changed: which items there are of its name now."""
        watches = next((each for each in self.watches if each.namespace in ("", namespace)), None)
        if watches is None:
            return
        found = {item.id: item for item in self._found(watches, namespace, name)}
        before = self._uids.get((namespace, name), set())
        self._uids[namespace, name] = set(found)
        if not found:
            del self._uids[namespace, name]
        matters = False
        for uid in before | found.keys():
            old, new = self._items.get(uid), found.get(uid)
            matters = matters or old is None or new is None or not old.claimed_like(new)
            if new is None:
                self._items.pop(uid, None)
                self.known.pop(uid, None)
            else:
                self._items[uid] = new
                self.known[uid] = Where(watches, namespace, name)
        if changed := before | found.keys():
            for callback in self._subscribers:
                callback(changed, matters)

    def of(self, namespace: str, name: str) -> Iterable[str]:
        """The items of that name: two while one follows another that is not released."""
        return self._uids.get((namespace, name), ())

    def _found(self, watches: KnativeWatches, namespace: str, name: str) -> list[Item]:
        service = watches.services.store.get(namespace, name)
        record = watches.orchestrators.store.get(namespace, name)
        found = []
        if record is not None and (uid := owner(record)) and RELEASED not in record.metadata.annotations:
            found.append(Item(uid, version_of(record), {}, self._needs))
        if service is not None:
            meta = service.metadata
            found.append(Item(meta.uid, version_of(service), meta.labels, self._needs))
        return found
