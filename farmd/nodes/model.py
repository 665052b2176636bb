"""The snapshot and the plan of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from farmd.work.model import Blocked
from store.nodes import Drain, Node, NodeStatus
from store.work import Work

NOTICE_SECONDS = 5.0
"""An agent that is absent for so long is reported; a restart within it is not."""

LOOK_SECONDS = 5.0
"""The period in which a drain reads why pods are left."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A pod that is left on a node, or still runs there. ``owner`` is its controller's id."""

    instance: str
    owner: str
    system: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One node at one moment.

    ``node`` is None without a record that decodes; ``broken`` says why it does not. ``absent_for`` is for how
    many seconds this farm itself has seen the agent absent; None: unknown, or the agent is present. ``left``
    is None unless a drain needs it; ``waiting`` says why those pods stay. ``stated`` are the labels that the
    agent stated last, as far as this farm knows them. ``status`` is the stored one. ``now`` is in seconds
    since the epoch.
    """

    node: Node | None
    present: bool
    work: Work
    absent_for: float | None
    grace: float
    frozen: str | None
    now: float
    farm: str
    left: tuple[Leftover, ...] | None = None
    waiting: tuple[str, ...] = ()
    stated: Mapping[str, str] = field(default_factory=dict)
    status: NodeStatus | None = None
    broken: str = ""

    @property
    def draining(self) -> Drain | None:
        """The drain that is not over yet."""
        return self.node.draining if self.node is not None else None

    @property
    def lost(self) -> bool:
        """Whether its agent is given up and has not returned."""
        return not self.present and self.work.lost_since > 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes to make now.

    ``register``: write the missing record. ``drain`` is the drain's new state, None: unchanged. ``status`` is
    for people, None: none. ``after``: seconds until time alone changes the plan. ``blocked``: a freeze holds
    back a due verdict, or the node waits for people.
    """

    register: bool = False
    verdict: Literal["", "lost", "back"] = ""
    drain: Drain | None = None
    status: NodeStatus | None = None
    after: float | None = None
    blocked: Blocked | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not (self.register or self.verdict or self.drain)
