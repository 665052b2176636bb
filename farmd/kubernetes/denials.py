"""What the API server denied this farm for want of rights: verb, resource and namespace.

A quota or a policy refuses with 403 as well; that is no want of rights, and is told of its object alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from farmd.kubernetes.errors import KubernetesError
from store.ports import Clock

# A watch tries again each half a minute, a worker each minute: what is not denied again is over.
REMEMBERED_SECONDS = 150.0
_RIGHTS = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"'
    r'(?: in API group "(?P<group>[^"]*)")?(?: in the namespace "(?P<namespace>[^"]+)")?'
)


class Denial(NamedTuple):
    """One right that is missing; ``namespace`` is empty for all."""

    verb: str
    resource: str
    namespace: str

    def __str__(self) -> str:
        where = f"in the namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"may not {self.verb} {self.resource} {where}"


class Denials:
    """The rights that were missing of late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Denial, float] = {}

    def note(self, error: KubernetesError) -> None:
        """Remember a 403, if it is about rights."""
        if (found := _RIGHTS.search(error.message)) is not None:
            resource = ".".join(part for part in (found["resource"], found["group"]) if part)
            self._seen[Denial(found["verb"], resource, found["namespace"] or "")] = self._clock.mono()

    def current(self) -> list[Denial]:
        """The denials of the last moments, sorted; older ones are over."""
        since = self._clock.mono() - REMEMBERED_SECONDS
        self._seen = {denial: at for denial, at in self._seen.items() if at > since}
        return sorted(self._seen)
