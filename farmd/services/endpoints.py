"""Which pods answer for a service: pure.

What must never break: doubt empties no answer. A pod whose agent is absent is neither healthy nor unhealthy
(R21), and one that leaves still serves (R39): both are endpoints where no available pod would be left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import msgspec

INDEX_BYTES = 6
"""The size of an index. Programs that read JSON numbers as floats keep only 53 bits."""


class Endpoint(msgspec.Struct, frozen=True, order=True):
    """One pod that serves: its node, its instance, its owner as ``active`` names it, and where it listens."""

    node: str
    instance: str
    owner: str
    address: str
    port: int

    @property
    def pod(self) -> tuple[str, str, str]:
        """The pod, wherever it listens."""
        return self.node, self.instance, self.owner


class Sighting(msgspec.Struct, frozen=True):
    """A pod of a service's owner. ``unknown``: its agent is absent. Port 0: it has none of that name.

    ``leaving``: it still serves, and is to stop. ``manifest`` is the digest of what it runs, where that is
    known.
    """

    endpoint: Endpoint
    available: bool = False
    unknown: bool = False
    leaving: bool = False
    manifest: str = ""


def serving(sightings: Iterable[Sighting], before: Collection[Endpoint]) -> tuple[Endpoint, ...]:
    """The endpoints, sorted; ``before`` is the last answer of this process."""
    seen = list(sightings)
    reached = [each for each in seen if each.endpoint.port and each.endpoint.address]
    found = [each.endpoint for each in reached if each.available]
    if not found:
        unknown = {each.endpoint.pod for each in seen if each.unknown}
        found = [each.endpoint for each in reached if each.leaving and not each.unknown]
        found += [endpoint for endpoint in before if endpoint.pod in unknown]
    return tuple(sorted(found))


def index(endpoints: Collection[Endpoint]) -> int:
    """A number above 0 that is equal on all farms for equal endpoints, and else differs."""
    body = msgspec.json.encode(endpoints)
    return int.from_bytes(hashlib.blake2b(body, digest_size=INDEX_BYTES).digest(), "big") + 1
