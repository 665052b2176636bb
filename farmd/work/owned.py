"""The values that the decisions of all owners of replicas share: a snapshot, a plan, a status."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from farmd.pods.changes import NodeChanges, PodPlan
from farmd.pods.state import PodState, waits_for_availability
from farmd.runtime.wake import earliest
from farmd.work.model import Blocked
from store.entry import Stored
from store.named import Owner
from store.operations import Operation
from store.pods import Place
from store.status import Status

Units = tuple[Iterable[NodeChanges], Sequence[Operation]]
"""Changes, each of which must happen as a whole, in this order; and checks that all transactions carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """The config keys with other values than the version that runs has (R41); empty: none.

    ``due``: a rollout may begin now. ``text`` says why none begins; ``stuck``: it needs a person. ``after``:
    seconds until time alone changes this.
    """

    changed: tuple[str, ...] = ()
    due: bool = False
    text: str = ""
    stuck: bool = False
    after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSnapshot:
    """One owner's pods at one moment; a kind adds its record and its other facts.

    ``frozen`` is the evidence that freezes removals; ``commanded``: the record changed after that freeze,
    which is a person's explicit command (R18). ``now``: seconds since the epoch. ``cramped`` are outdated
    pods whose nodes have no room for what the record's manifest asks for. ``running`` names processes that
    nodes still run of an owner that is being deleted and has no pods left. ``unread`` are facts that the
    reader has not answered yet, because each costs a question. ``following``: None where the owner follows
    no config keys.
    """

    pods: Mapping[Place, PodState]
    frozen: str | None = None
    commanded: bool = False
    now: float = 0.0
    cramped: frozenset[Place] = frozenset()
    running: str = ""
    unread: frozenset[str] = frozenset()
    following: Following | None = None

    @property
    def held_back(self) -> bool:
        """Whether removals and replacements are frozen."""
        return self.frozen is not None and not self.commanded

    @property
    def waits_for_room(self) -> bool:
        """Whether room on a node may change the decision."""
        return bool(self.cramped)


class ReplicaReading(Protocol):
    """A snapshot, and what its plan is carried out with."""

    @property
    def stored(self) -> Stored[Any]:
        """The owner's record."""

    @property
    def snapshot(self) -> Any:
        """The input of ``decide``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan(PodPlan):
    """The changes to make now.

    ``why`` is the reason for the audit. ``unasked`` are removals that no person asked for, on which the
    removal budget is spent (R19). ``blocked`` says what stands in the way of the rest, ``waiting`` what is
    merely not over yet; ``after`` (seconds) when time alone changes something. ``ends``: nothing is left of
    an owner that is being deleted, and its record goes. ``contended``: why nothing can be planned until other
    workers of this process have changed what they are changing. ``follows``: the changed config keys that a
    rollout begins for.
    """

    why: str = ""
    unasked: tuple[Place, ...] = ()
    blocked: Blocked | None = None
    waiting: str = ""
    after: float | None = None
    ends: bool = False
    contended: str = ""
    follows: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not (self.changes_pods or self.ends or self.contended or self.follows)


Q = TypeVar("Q", bound=ReplicaPlan)


def with_following(record: Any, snapshot: ReplicaSnapshot, plan: Q) -> Q:
    """The plan, and the start of a rollout to changed config keys once nothing else is left to do (R41).

    A pause, a freeze and whatever manages the owner come first.
    """
    found = snapshot.following
    if found is None or not (found.changed or found.text):
        return plan
    if record.disabled or record.deleting or record.managed_by:
        return plan
    if found.due and snapshot.frozen is None:
        return dataclasses.replace(plan, follows=found.changed) if plan.empty else plan
    waits = f"{', '.join(found.changed)} changed; frozen: {snapshot.frozen}" if found.due else found.text
    if found.stuck:
        return dataclasses.replace(
            plan, blocked=plan.blocked or Blocked("follow", waits), after=earliest(plan.after, found.after)
        )
    return dataclasses.replace(plan, waiting=plan.waiting or waits, after=earliest(plan.after, found.after))


def managed(record: Owner) -> Blocked | None:
    """Why a worker does not end an owner that is being deleted; None: nothing manages it (R14)."""
    if not record.managed_by:
        return None
    return Blocked("managed", f"{record.managed_by} manages it, and only that may end it")


def why_replaced(record: Owner, plan: PodPlan, pods: Mapping[Place, PodState]) -> str:
    """Why pods are replaced in place, in one line for the audit; empty if none is."""
    found = {pods[place].outdated(record.manifest) for place in plan.replacements}
    texts = {True: "another manifest is requested", False: "a restart is requested"}
    return "; ".join(text for differs, text in texts.items() if differs in found)


def status(
    record: Owner,
    plan: ReplicaPlan,
    pods: Collection[PodState],
    desired: int,
    *,
    farm: str,
    since: float,
    disabled: bool,
    settled: bool = True,
    remark: str = "",
    current: Collection[PodState] | None = None,
) -> Status:
    """The status of an owner's pods. ``since`` is the time of a new state.

    ``settled``: nothing is under way besides these pods. ``remark`` is the reason text of a converged owner.
    ``current`` are the pods that run what they should, where that is not the record's manifest for all.
    """
    if current is None:
        current = [state for state in pods if not state.outdated(record.manifest, record.restart)]
    healthy = sum(state.healthy for state in current)
    whole = len(pods) == desired == healthy and plan.empty and settled and not record.deleting
    if disabled:
        state, reason = "disabled", ""
    elif plan.blocked:
        state, reason = ("frozen" if plan.blocked.frozen else "blocked"), plan.blocked.text
    elif whole and all(state.available for state in current):
        state, reason = "converged", remark
    else:
        wait = waits_for_availability(record.min_healthy_time) if whole else ""
        state, reason = "progressing", plan.waiting or wait
    return Status(
        state=state,  # type: ignore[arg-type]
        desired=desired,
        placed=len(pods),
        healthy=healthy,
        outdated=len(pods) - len(current),
        serving=sum(state.healthy for state in pods),
        reason=reason,
        farm=farm,
        since=since,
    )
