"""What a node's decision is made from, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from farmd.work.model import Blocked
from store.nodes import Drain, Node, NodeStatus
from store.work import Work

NOTICE_SECONDS = 5.0
"""How long an agent is absent before people are told: a restart within it is nobody's concern."""

LOOK_SECONDS = 5.0
"""How often a drain looks at what keeps the pods that are left."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A pod that still stands on a node, or still runs there. ``owner`` is its controller's id."""

    instance: str
    owner: str
    system: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One node at one moment.

    ``node`` is None while there is no record of it that decodes, ``broken`` why it does not. ``absent_for``
    says for how many seconds this farm itself has seen the agent absent; None while it cannot tell, or the
    agent is there. ``left`` is None unless a drain asks for it, ``waiting`` says what keeps those pods.
    ``status`` is the one that stands. ``now`` is in seconds since the epoch.
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
    status: NodeStatus | None = None
    broken: str = ""

    @property
    def draining(self) -> Drain | None:
        """The drain that is not over yet."""
        drain = self.node.drain if self.node is not None else None
        return drain if drain is not None and drain.stage != "done" else None

    @property
    def lost(self) -> bool:
        """Whether its agent is given up, and not back."""
        return not self.present and self.work.lost_since > 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to change now.

    ``register``: write the record that is missing. ``drain`` is the new state of the drain, None when it
    stays. ``status`` is what people should read, None for nothing. ``after``: seconds until time alone
    changes this plan. ``blocked``: a due verdict is held back by a freeze, or the node waits for people.
    """

    register: bool = False
    verdict: Literal["", "lost", "back"] = ""
    drain: Drain | None = None
    status: NodeStatus | None = None
    after: float | None = None
    blocked: Blocked | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write but a status."""
        return not (self.register or self.verdict or self.drain)
