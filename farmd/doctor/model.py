"""What the doctor finds, and what would take it away."""

from __future__ import annotations

from dataclasses import dataclass, field

from store.entry import Entry


@dataclass(frozen=True, slots=True)
class Release:
    """Room to give back: an instance in a node's reservations, as seen, unless one of ``absent`` exists."""

    node: str
    instance: str
    entry: Entry
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """Keys to delete at the index at which they were seen, while others are still absent.

    ``kind`` and ``id`` name the item in the audit; ``pod`` is set where a pod goes, as
    ``<node>/<instance>``, so that replay of the audit knows of it. ``release`` is room that nobody needs
    any more once the keys are gone; ``at_once``: in the very same transaction, because the owner lives and
    takes the place again as soon as it can. ``writes`` are records to restore: key, index as seen, new value.
    """

    kind: str
    id: str
    keys: tuple[tuple[str, int], ...]
    absent: tuple[str, ...] = ()
    pod: str = ""
    release: Release | None = None
    at_once: bool = False
    writes: tuple[tuple[str, int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    ``code`` is stable, ``object`` the key without its prefix (or a process, or a kind of work), ``fix``
    what to do; with a ``removal``, or a sentinel's key in ``registers``, the doctor can do it itself.
    """

    code: str
    object: str
    explanation: str
    fix: str
    removal: Removal | None = None
    registers: str = ""

    @property
    def fixable(self) -> bool:
        """Whether the doctor can do it itself."""
        return self.removal is not None or bool(self.registers)

    def fits(self, target: str) -> bool:
        """Whether a person means this one: by its code, its object, or one part or the beginning of it."""
        above = self.object.startswith(f"{target.rstrip('/')}/")
        return target in {self.code, self.object} or above or target in self.object.split("/")


@dataclass(frozen=True, slots=True)
class Report:
    """Plain facts by name, and findings in the order of the checks."""

    facts: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
