"""The objects of one resource as a watch knows them, indexed by whose they are.

What must never break: an object leaves only by an event, or by a list that lacks it; an event or a response
that is older than what is known changes nothing; each change is told once, as one object added, updated or
deleted. Versions compare as integers; all objects of one resource share one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

Key = tuple[str, str]
"""Namespace and name."""


class Reference(Protocol):
    """An owner of an object."""

    @property
    def uid(self) -> str: ...


class Metadata(Protocol):
    """What the store reads of an object."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def controller(self) -> Reference | None: ...


class Object(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> Metadata: ...


ObjectT = TypeVar("ObjectT", bound=Object)
Object_contra = TypeVar("Object_contra", bound=Object, contravariant=True)


class Listener(Protocol[Object_contra]):
    """A listener that gets each change; its calls must be short and must not raise."""

    def added(self, new: Object_contra) -> None:
        """An object that was not known."""

    def updated(self, old: Object_contra, new: Object_contra) -> None:
        """A newer version of a known object."""

    def deleted(self, last: Object_contra) -> None:
        """An object is gone; ``last`` is its last known version."""

    def reset(self) -> None:
        """The server went back to an earlier state: what was written since then may never have been."""


def controller_of(obj: Object) -> str:
    """The uid of an object's controller; empty: it has none."""
    controller = obj.metadata.controller
    return controller.uid if controller is not None else ""


class ObjectStore(Generic[ObjectT]):
    """Objects by namespace and name, and by ``owner``; ``version`` is the one up to which the server told
    everything.
    """

    def __init__(self, owner: Callable[[ObjectT], str] = controller_of) -> None:
        self.version = 0
        self._owner = owner
        self._own = 0
        self.broken: dict[Key, str] = {}
        self._objects: dict[Key, ObjectT] = {}
        self._by_owner: dict[str, dict[Key, ObjectT]] = {}
        self._listeners: list[Listener[ObjectT]] = []

    def listen(self, listener: Listener[ObjectT]) -> None:
        """Call a listener with each change from now on."""
        self._listeners.append(listener)

    def get(self, namespace: str, name: str) -> ObjectT | None:
        """One object; None if none is known."""
        return self._objects.get((namespace, name))

    def __iter__(self) -> Iterator[ObjectT]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def owned_by(self, owner: str) -> Iterable[ObjectT]:
        """The objects of an owner: of the controller with this uid, if nothing else was said."""
        return list(self._by_owner.get(owner, {}).values())

    def orphans(self, namespace: str, labels: Mapping[str, str]) -> Iterable[ObjectT]:
        """The objects of a namespace without an owner that bear all of these labels."""
        return [
            each
            for (space, _), each in self._by_owner.get("", {}).items()
            if space == namespace and labels.items() <= each.metadata.labels.items()
        ]

    @property
    def known(self) -> int:
        """The highest version that the server has told, own writes included."""
        return max(self.version, self._own)

    def own(self, written: ObjectT) -> None:
        """Add an object from the response to an own write, unless the watch has shown it already."""
        if version_of(written) > self.version:
            self._own = max(self._own, version_of(written))
            self._enter(written)

    def seen(self, obj: ObjectT) -> None:
        """A watch's event: the object was added or changed."""
        self.version = max(self.version, version_of(obj))
        self.broken.pop(key_of(obj), None)
        self._enter(obj)

    def gone(self, last: ObjectT) -> None:
        """A watch's event: the object was deleted in this version."""
        self.version = max(self.version, version_of(last))
        self.broken.pop(key_of(last), None)
        known = self._objects.get(key_of(last))
        if known is not None and version_of(known) <= version_of(last):
            self._remove(known)

    def spoil(self, key: Key, error: str, version: int, *, deleted: bool) -> None:
        """A watch's event whose object does not decode: the last good version stays until the deletion."""
        self.version = max(self.version, version)
        known = self._objects.get(key)
        if not deleted:
            self.broken[key] = error
            return
        self.broken.pop(key, None)
        if known is not None and version_of(known) <= version:
            self._remove(known)

    def replace(
        self, listed: Mapping[Key, ObjectT], version: int, broken: Mapping[Key, str], floor: int
    ) -> bool:
        """A whole list of that version; what it lacks is gone, but for own writes that are newer than it.

        ``broken``: listed objects that do not decode; their last good version stays. ``floor``: what was
        ``known`` when the list was asked for. Returns whether the server was restored: it went back below
        that, or to an older version of an object.
        """
        older = (
            version_of(obj) < version_of(self._objects[key]) <= version
            for key, obj in listed.items()
            if key in self._objects
        )
        restored = version < floor or any(older)
        self.version = version
        self.broken = dict(broken)
        for key, known in list(self._objects.items()):
            newer = not restored and version_of(known) > version
            if key not in listed and key not in broken and not newer:
                self._remove(known)
        for obj in listed.values():
            self._enter(obj, force=restored)
        if restored:
            self._own = 0
            for listener in self._listeners:
                listener.reset()
        return restored

    def _enter(self, new: ObjectT, *, force: bool = False) -> None:
        """Enter an object if it is newer than the known one; another uid under the name is another object."""
        key = key_of(new)
        old = self._objects.get(key)
        if old is not None:
            same = old.metadata.uid == new.metadata.uid
            if same and old.metadata.resource_version == new.metadata.resource_version:
                return
            if version_of(new) <= version_of(old) and not force:
                return
            if same:
                self._unindex(old)
            else:
                self._remove(old)
                old = None
        self._objects[key] = new
        self._by_owner.setdefault(self._owner(new), {})[key] = new
        for listener in self._listeners:
            if old is None:
                listener.added(new)
            else:
                listener.updated(old, new)

    def _remove(self, known: ObjectT) -> None:
        del self._objects[key_of(known)]
        self._unindex(known)
        for listener in self._listeners:
            listener.deleted(known)

    def _unindex(self, known: ObjectT) -> None:
        owner = self._owner(known)
        del self._by_owner[owner][key_of(known)]
        if not self._by_owner[owner]:
            del self._by_owner[owner]


def key_of(obj: Object) -> Key:
    """Namespace and name."""
    return obj.metadata.namespace, obj.metadata.name


def version_of(obj: Object) -> int:
    """The object's version; 0 if it is no number."""
    text = obj.metadata.resource_version
    return int(text) if text.isdecimal() else 0
