"""What is found wrong with items that lie outside of Consul, in the words of the doctor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Fault(NamedTuple):
    """``code`` is stable, ``object`` is as people write it, ``fix`` says what to do."""

    code: str
    object: str
    explanation: str
    fix: str


@dataclass(frozen=True, slots=True)
class Examined:
    """Faults in the order in which they are to be read, and plain facts by name."""

    faults: Sequence[Fault] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
