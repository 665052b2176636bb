"""A listener of an informer's store that remembers what it was told."""

from __future__ import annotations

from farmd.kubernetes.store import Object


class Mirror:
    """What the calls of a listener add up to; a call that does not fit fails."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.resets = 0
        self.told: list[str] = []

    def added(self, new: Object) -> None:
        assert new.metadata.name not in self.objects
        self.objects[new.metadata.name] = new
        self.told.append(f"added {new.metadata.name}")

    def updated(self, old: Object, new: Object) -> None:
        assert self.objects[old.metadata.name] == old
        assert old.metadata.uid == new.metadata.uid
        assert old.metadata.resource_version != new.metadata.resource_version
        self.objects[new.metadata.name] = new
        self.told.append(f"updated {new.metadata.name}")

    def deleted(self, last: Object) -> None:
        assert self.objects.pop(last.metadata.name) == last
        self.told.append(f"deleted {last.metadata.name}")

    def reset(self) -> None:
        self.resets += 1
        self.told.append("reset")
