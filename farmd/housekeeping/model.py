"""What house-keeping decides from, and what a round of it says."""

from __future__ import annotations

from dataclasses import dataclass

from farmd.work.model import Blocked

# Longer than any transaction can last: requests end after 10 s, and Consul applies none much later.
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class HousekeepingSettings:
    """What an operator can set; seconds.

    ``interval`` lies between two rounds, ``manifest_age`` is how long a manifest is kept that nothing
    refers to, ``audit_retention`` how long the audit log reaches back.
    """

    interval: float = 3600.0
    manifest_age: float = 24 * 3600.0
    audit_retention: float = 7 * 24 * 3600.0


DEFAULTS = HousekeepingSettings()


@dataclass(frozen=True, slots=True)
class Body:
    """One stored manifest; ``flags`` hold when it was condemned (seconds since the epoch), or 0."""

    sha: str
    index: int
    flags: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Sighting:
    """When this worker first saw a condemnation, by its own monotonic clock, and at which index."""

    index: int
    at: float


@dataclass(frozen=True, slots=True)
class Collection:
    """What to do with manifests now: condemn, take a condemnation back, or delete."""

    condemn: tuple[Body, ...] = ()
    absolve: tuple[Body, ...] = ()
    collect: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """How a round ended; ``more`` tells that it stopped at its bound and the next should come soon."""

    more: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A chore that is due; ``frozen`` says why nothing may be removed now, empty when it may."""

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
