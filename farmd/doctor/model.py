"""Findings of the doctor, and the changes that fix them."""

from __future__ import annotations

from dataclasses import dataclass, field

from store.entry import Entry
from store.operations import Operation


@dataclass(frozen=True, slots=True)
class Release:
    """Room to give back: an instance in a node's reservations, as read, unless a key in ``absent`` exists."""

    node: str
    instance: str
    entry: Entry
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """Keys to delete at the index at which they were read, while other keys are still absent.

    ``kind`` and ``id`` name the item in the audit; ``pod`` is ``<node>/<instance>`` if a pod is removed, for
    the replay of the audit. ``release`` is room that is free once the keys are gone; ``at_once``: in the same
    transaction, because the owner exists and takes the place again as soon as it can. ``restores`` are
    records that do not decode, with what takes their place; ``frees`` those that are set free of what is
    gone: key, index as read, new value. ``entries`` are operations on what is no key, with its name for
    people, and ``proofs`` the checks of what makes them right.
    """

    kind: str
    id: str
    keys: tuple[tuple[str, int], ...]
    absent: tuple[str, ...] = ()
    pod: str = ""
    release: Release | None = None
    at_once: bool = False
    restores: tuple[tuple[str, int, bytes], ...] = ()
    frees: tuple[tuple[str, int, bytes], ...] = ()
    entries: tuple[tuple[str, Operation], ...] = ()
    proofs: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault in the store.

    ``code`` is stable, ``object`` the key without its prefix (or a process, or a kind of work), ``fix`` what
    to do. With a ``removal``, or a sentinel's key in ``registers``, the doctor can fix it.
    """

    code: str
    object: str
    explanation: str
    fix: str
    removal: Removal | None = None
    registers: str = ""

    @property
    def fixable(self) -> bool:
        """Whether the doctor can fix it."""
        return self.removal is not None or bool(self.registers)

    def document(self) -> dict[str, str | bool]:
        """The finding as plain data."""
        return {name: getattr(self, name) for name in ("code", "object", "explanation", "fix", "fixable")}

    def fits(self, target: str) -> bool:
        """Whether the target names this finding: by its code, its object, or a part or the beginning of
        that.
        """
        above = self.object.startswith(f"{target.rstrip('/')}/")
        return target in {self.code, self.object} or above or target in self.object.split("/")


@dataclass(frozen=True, slots=True)
class Report:
    """Plain facts by name, and findings in the order of the checks."""

    facts: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def has(self, code: str) -> bool:
        """Whether one of the findings has this code."""
        return any(finding.code == code for finding in self.findings)

    def beside(self, other: Report) -> Report:
        """This report behind another one, as one report."""
        return Report({**other.facts, **self.facts}, (*other.findings, *self.findings))
