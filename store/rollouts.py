"""Rollouts: the live ones, their durable state, and the history of those that are over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from store import codec, operations
from store.entry import Stored
from store.keys import Keys
from store.named import Listing, records
from store.operations import Operation
from store.policies import Policy
from store.ports import KeyReader
from store.rcs import ReplicationController
from store.status import ItemStatus
from store.times import Time

# Rollouts: the live ones, their durable state, and what is over (p2 ``pkg/roll/fields``, ``rollstore``).
#
# A rollout's name is that of its controller, so that a controller has one at a time. The record holds what
# people say; the worker only deletes it, and keeps its own state in ``work/rollouts/<id>``.

KIND = "rollouts"
# What a farm must know (R11): to own a controller that a rollout manages; to carry out a rollout that moves
# pods in another way than one in place of the other, or at a pace of its own.
# Or that pods of superseded versions are the rollout's alone, and count for its floor.
MANAGED, STAGED, SUPERSEDED = "rollouts.1", "rollouts.2", "rollouts.3"
# Or that a rollout is of a daemon set, whose pods are of two versions then.
NODES = "rollouts.4"
# Or that pods of superseded versions on nodes wait for the version that is coming.
NODES_SUPERSEDED = "rollouts.5"
# Or that a node has pods of both versions for a while.
NODES_BESIDE = "rollouts.6"
Ending = Literal["done", "reverted", "aborted"]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Rollout(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """From the version of the controller ``old`` to that of the controller ``new``, both by id.

    ``replicas`` is how many pods there are to be in the end; ``started_from`` and ``started_to`` are both
    controllers' counts at the beginning. ``created_new``: the new controller exists for this rollout alone
    and goes if it is reverted. People's words: ``paused``, ``resumed`` (how often), ``approved`` (how many
    stages), ``wish``. ``paused_at``: since when it is paused, ``at``: when it was created (seconds since the
    epoch), ``by`` whom. ``service``: the id of the service that is switched from one version to the other, or
    empty. ``superseded``: the digests of the versions in whose place a person put ``to_manifest``, the newest
    last; pods of the new controller may run them still.

    ``of`` is the family of what it changes. A daemon set is both ``old`` and ``new``, and the number of its
    nodes is the count.
    """

    id: str
    name: str
    old: str
    new: str
    from_manifest: Annotated[str, msgspec.Meta(min_length=1)]
    to_manifest: Annotated[str, msgspec.Meta(min_length=1)]
    replicas: Annotated[int, msgspec.Meta(ge=1)]
    started_from: Count
    started_to: Count
    created_new: bool = True
    policy: Policy = Policy()
    service: str = ""
    paused: bool = False
    paused_at: Time = 0.0
    resumed: int = 0
    approved: int = 0
    wish: Literal["", "revert", "abort"] = ""
    labels: dict[str, str] = {}
    needs: list[str] = []
    by: str = ""
    at: Time = 0.0
    superseded: list[str] = []
    deleting: bool = False
    of: str = "rcs"


class RolloutState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a rollout is, as its worker notes it down; without it the rollout is pending.

    While it is ``moving`` it has taken both controllers, else they are lent. ``back``: it goes back, for
    good. ``stage`` counts from 0; ``since`` is when the phase began and ``reached`` when the stage's goal
    was met (seconds since the epoch). ``cause`` says why it halted or turned back. After a ``fault`` it
    goes on only once the record's count of ``resumed`` is above this one. ``switched``: the service names
    the new version. ``idle``: seconds without progress before it was held, which count once it goes on.
    ``superseded``: how many versions were superseded when this way began; with more of them in the record it
    begins again.
    """

    phase: Literal["moving", "baking", "halted"]
    back: bool = False
    stage: int = 0
    since: Time = 0.0
    reached: Time = 0.0
    cause: str = ""
    fault: bool = False
    resumed: int = 0
    switched: bool = False
    idle: float = 0.0
    superseded: int = 0


class SideStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One controller: how many pods it should have, has, and how many of its version are available.

    ``outdated`` pods run a version that was superseded, ``serving`` of these are available.
    """

    desired: int = 0
    placed: int = 0
    available: int = 0
    outdated: int = 0
    serving: int = 0


class GateStatus(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a gate said last: ``pass``, ``fail`` or ``none`` (no data), its words, and when (seconds since the
    epoch); how many passes or failures are the last in a row, of how many that are wanted.
    """

    name: str
    result: str = "none"
    text: str = ""
    at: Time = 0.0
    passes: int = 0
    failures: int = 0
    wanted: int = 0


class RolloutStatus(ItemStatus, frozen=True, omit_defaults=True, kw_only=True):
    """The status of a rollout; ``stage`` counts from 1, ``minimum`` is the floor.

    ``back``: it goes back. ``asks`` is the stage that waits for a person's word; 0: none does. ``began``:
    when the phase began, and ``due``: when the rollout fails for lack of progress; 0: it waits for none.
    ``ailing`` is the first pod that came and is not available yet, with its phase. ``gates`` are those that
    this farm asked so far, in the policy's order.
    """

    phase: str = "pending"
    stage: int = 0
    stages: int = 0
    goal: int = 0
    minimum: int = 0
    asks: int = 0
    back: bool = False
    began: Time = 0.0
    due: Time = 0.0
    ailing: str = ""
    old: SideStatus = SideStatus()
    new: SideStatus = SideStatus()
    gates: tuple[GateStatus, ...] = ()

    @property
    def underway(self) -> bool:
        """Whether it has begun."""
        return self.phase != "pending"

    @property
    def progress(self) -> str:
        """The phase, the stage, and of both versions how many pods are available."""
        if not self.stage:
            return self.phase
        told = f"{self.phase}, stage {self.stage} of {self.stages}"
        sides = (("old", self.old), ("new", self.new))
        return ", ".join([told, *(f"{word} {side.available}/{side.desired}" for word, side in sides)])


# History: rollouts that are over, ``history/<rc name>/<rollout id>``, the newest ten of each controller.

KEPT = 10


class Ended(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A rollout that is over, ``history/<rc name>/<rollout id>``, with the old controller as it was.

    ``new`` is the id of the new controller, ``started_from`` the count of the old one when the rollout began;
    earlier versions tell neither. ``of`` is as a rollout's; of a daemon set ``old`` has the name and the
    manifest alone.
    """

    id: str
    name: str
    outcome: Ending
    from_manifest: str
    to_manifest: str
    old: ReplicationController
    replicas: int
    new: str = ""
    started_from: int = 0
    reason: str = ""
    by: str = ""
    began: Time = 0.0
    ended: Time = 0.0
    of: str = "rcs"


def past_name(of: str, name: str) -> str:
    """The name under which the history of an object of a family lies; of controllers it is their own."""
    return name if of == "rcs" else f"{of}:{name}"


class History:
    """What is over, by the name of what it changed, which is of the family ``of``."""

    def __init__(self, client: KeyReader, keys: Keys, of: str = "rcs") -> None:
        self._client = client
        self._keys = keys
        self._of = of

    async def read(self, name: str) -> Listing[Ended]:
        """The newest first, and the errors of those that do not decode."""
        found = await records(
            self._client, self._keys.history(past_name(self._of, name), ""), Ended, "consistent"
        )
        newest = sorted(found.items, key=lambda each: (-each.record.ended, each.record.id))
        return Listing(newest, found.broken)

    def add(self, ended: Ended, known: Sequence[Stored[Ended]]) -> list[Operation]:
        """The operations that remember one more than is known, and forget the oldest."""
        oldest = [operations.delete_cas(each.key, each.index) for each in known[KEPT - 1 :]]
        return [
            operations.create(
                self._keys.history(past_name(ended.of, ended.name), ended.id), codec.encode(ended)
            ),
            *oldest[:KEPT],
        ]
