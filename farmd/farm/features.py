"""The features that a farm knows now, which items may need of it (R11), and what it reports beside them.

Those of its version and of its settings stay. A kind of work adds one while it can do what that means, such
as reach another system, and withdraws it when it cannot: then the farm gives up the items that need it, and
another farm takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from store.farms import ClusterReport


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
