"""The values of house-keeping: manifests and their condemnations, rounds."""

from __future__ import annotations

from dataclasses import dataclass

from farmd.config.sections import HousekeepingSection
from farmd.work.model import Blocked

# Longer than any transaction can last: requests end after 10 s, and Consul applies none much later.
PATIENCE_SECONDS = 120.0

DEFAULTS = HousekeepingSection()


@dataclass(frozen=True, slots=True)
class Body:
    """One stored value, named by a digest or its key; ``flags`` is when it was condemned (seconds since the
    epoch), or 0.
    """

    name: str
    index: int
    flags: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Sighting:
    """The index of a condemnation, and when this farm first saw it by its own monotonic clock."""

    index: int
    at: float


Seen = dict[str, Sighting]
"""The condemnations that a farm saw of one chore's values, by name."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The values to condemn, to absolve and to delete now."""

    condemn: tuple[Body, ...] = ()
    absolve: tuple[Body, ...] = ()
    collect: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """The end of a round; ``more``: it stopped at its bound, and the next should come soon."""

    more: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The facts of a due chore; ``frozen`` is the evidence of a freeze, or empty."""

    frozen: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Whether to do a round now."""

    round: bool = False
    blocked: Blocked | None = None
    after: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.round
