"""Sees every commit of the store as it happens, and checks there what no later look could tell.

It knows who wrote (``enter`` is called as each request is answered) and the store right before and after.
Only what farms do is judged: people may do anything. Rules that depend on what a farm could know leave out
those that were cut off or stopped a moment ago, and what changed a moment ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from store import codec
from store.audit import Audit
from store.embedded.kv import Pair
from store.embedded.server import EmbeddedServer
from store.embedded.state import Command, Failure, Transaction
from store.embedded.verbs import WRITES
from store.errors import RecordInvalid
from store.failsafe import Failsafe, frozen
from store.intent import Intent
from store.keys import Keys, is_sentinel
from store.locks import Holder
from store.nodes import Agent, Node, effective_labels
from store.pods import Pod
from store.ports import Clock
from store.rcs import ReplicationController
from store.reality import Reality, healthy
from store.selectors import parse
from store.work import Work

T = TypeVar("T")
Place = tuple[str, str]
"""(node, instance)."""

KNOWN_AFTER = 3.0
"""Seconds after which a farm whose line is good must have seen a change."""
REMEMBERED = 80


@dataclass
class _Moment:
    """One transaction of a farm, and what stood before it."""

    farm: str
    index: int
    audits: list[Audit]
    holders: dict[tuple[str, str], Pair | None]
    rcs: dict[str, Pair | None]
    freeze: Pair | None
    added: set[tuple[str, str, str]] = field(default_factory=set)
    gone: set[tuple[str, str, str]] = field(default_factory=set)
    changed: set[tuple[str, str, str]] = field(default_factory=set)
    intents: set[Place] = field(default_factory=set)


class Witness:
    """Hooks itself into a server; ``violations`` is what it saw go wrong, ``story`` the last commits.

    ``tampered`` are places whose intent a person changed by hand: they need not fit until a farm or a
    person mended them. ``troubled`` tells whether a farm may be behind the times.
    """

    def __init__(
        self, server: EmbeddedServer, keys: Keys, clock: Clock, troubled: Callable[[str], bool]
    ) -> None:
        self.violations: list[str] = []
        self.story: deque[str] = deque(maxlen=REMEMBERED)
        self.tampered: set[Place] = set()
        self.commits = 0
        self._keys = keys
        self._clock = clock
        self._troubled = troubled
        self._state = server.state
        self._kv = server.state.kv
        self._commit = server.state.commit
        self._who = ""
        self._touched: dict[str, float] = {}
        self._pods: dict[str, str] = {}
        self._down: dict[str, set[Place]] = {}
        server.state.commit = self._seen  # type: ignore[method-assign]

    def enter(self, who: str) -> None:
        """Who is answered from now on."""
        self._who = who

    # -- the commit ----------------------------------------------------------------------------
    def _seen(self, command: Command) -> tuple[list[Pair], list[Failure]]:
        if not isinstance(command, Transaction):
            return self._commit(command)
        who, farm = self._who, self._who.startswith("farm/")
        writes = [op for op in command.operations if op.verb in WRITES]
        moment = self._before(who.removeprefix("farm/"), writes) if farm else None
        outcome = self._commit(command)
        if outcome[1]:
            return outcome
        self.commits += 1
        index = self._state.raft_index
        text = " ".join(f"{op.verb}:{op.key.removeprefix(self._keys.prefix)}" for op in writes)
        self.story.append(f"{self._clock.now() % 100_000:.2f} #{index} {who}: {text[:400]}")
        for op in writes:
            self._touch(op.key)
        if moment is not None:
            moment.index = index
            try:
                self._note(moment, writes)
                for line in self._judge(moment):
                    self._say(f"{who} at #{index}: {line}")
            except Exception as error:  # a fault of the witness must not pass for one of the farm's
                self._say(f"the witness failed at #{index}: {error!r}")
        for op in writes:
            self._mirror(op.key)
        return outcome

    def _say(self, text: str) -> None:
        self.violations.append(text)

    def _touch(self, key: str) -> None:
        self._touched[key] = self._clock.mono()

    def _mirror(self, key: str) -> None:
        """Keep the pods' manifests up to date; also forget what came back to health."""
        if key.startswith(self._keys.tree("pods")) and not is_sentinel(key):
            pair = self._kv.get(key)
            pod = self._record(Pod, pair)
            self._pods.pop(key, None)
            if pair is not None:
                self._pods[key] = pod.manifest if pod is not None else ""
        if key.startswith(self._keys.tree("reality")) and not is_sentinel(key):
            place = self._keys.reality_parts(key)
            for owner, places in self._down.items():
                if place in places and self._serves(owner, place):
                    places.discard(place)

    def _settled(self, *keys: str) -> bool:
        """Whether these have been as they are for long enough to be known."""
        return all(self._clock.mono() - self._touched.get(key, 0.0) > KNOWN_AFTER for key in keys)

    # -- reading -------------------------------------------------------------------------------
    def _record(self, kind: type[T], pair: Pair | None) -> T | None:
        if pair is None:
            return None
        try:
            return codec.decode(kind, pair.value or b"", pair.key)
        except RecordInvalid:
            return None

    def _before(self, farm: str, writes: Iterable[Any]) -> _Moment:
        audits = [
            codec.decode(Audit, op.value, op.key)
            for op in writes
            if op.key.startswith(self._keys.tree("audit"))
            and self._keys.is_audit_record(op.key)
            and op.key != self._keys.checkpoint
            and op.verb in ("cas", "set")
        ]
        items = {(audit.kind, audit.id) for audit in audits}
        return _Moment(
            farm,
            0,
            audits,
            {item: self._kv.get(self._keys.lock(*item)) for item in items},
            {item: self._kv.get(self._keys.record("rcs", item)) for kind, item in items if kind == "rcs"},
            self._kv.get(self._keys.failsafe("rcs")),
        )

    def _note(self, moment: _Moment, writes: Iterable[Any]) -> None:
        for op in writes:
            if is_sentinel(op.key):
                continue
            if op.key.startswith(self._keys.tree("pods")):
                parts, there = self._keys.pod_parts(op.key), self._kv.get(op.key) is not None
                if there and op.key in self._pods:
                    moment.changed.add(parts)
                elif there != (op.key in self._pods):
                    (moment.added if there else moment.gone).add(parts)
            elif op.key.startswith(self._keys.tree("intent")):
                moment.intents.add(self._keys.intent_parts(op.key))

    def _serves(self, owner: str, place: Place) -> bool:
        pod = self._record(Pod, self._kv.get(self._keys.pod(owner, *place)))
        reality = self._record(Reality, self._kv.get(self._keys.reality(*place)))
        return pod is not None and healthy(reality, pod.manifest)

    # -- the rules -----------------------------------------------------------------------------
    def _judge(self, moment: _Moment) -> Iterable[str]:
        pods = moment.added | moment.gone | moment.changed
        yield from self._owned(moment)
        if not (pods or moment.intents):
            return
        if len(moment.audits) != 1:
            yield f"changed pods with {len(moment.audits)} audit records"
            return
        audit = moment.audits[0]
        yield from self._told(moment, audit)
        yield from self._whole(pods, moment.intents)
        rc = self._record(ReplicationController, moment.rcs.get(audit.id))
        if audit.kind != "rcs":
            return
        if rc is None:
            yield "changed pods of a controller that is not there or does not decode"
            return
        if rc.disabled:
            yield f"changed pods of {rc.name}, which is disabled"
        yield from self._counted(moment, rc)
        if not self._troubled(moment.farm):
            yield from self._placed_well(moment, rc)
            yield from self._thawed(moment, rc, audit)
            yield from self._gently(moment, rc)
        self._down.setdefault(rc.id, set()).update(
            (node, instance)
            for owner, node, instance in moment.changed
            if owner == rc.id and not self._serves(owner, (node, instance))
        )

    def _owned(self, moment: _Moment) -> Iterable[str]:
        """A fenced-out farm changes nothing: who writes holds the item's lock at that moment."""
        for audit in moment.audits:
            if audit.actor != f"farm/{moment.farm}":
                yield f"wrote in the name of {audit.actor}"
            lock = moment.holders[audit.kind, audit.id]
            holder = Holder.parse(lock.value or b"").id if lock is not None and lock.session else "nobody"
            if holder != moment.farm and audit.kind in ("rcs", "nodes"):
                yield f"wrote {audit.action} of {audit.kind}/{audit.id}, whose lock {holder} holds"

    def _told(self, moment: _Moment, audit: Audit) -> Iterable[str]:
        """The audit lists exactly what was changed (R25)."""
        for what, said, done in (
            ("placed", audit.placed, moment.added),
            ("removed", audit.removed, moment.gone),
        ):
            listed = {tuple((p if p.count("/") == 2 else f"{audit.id}/{p}").split("/")) for p in said}
            if listed != done:
                yield f"{what} {sorted(done)}, the audit says {sorted(listed)}"

    def _whole(self, pods: set[tuple[str, str, str]], intents: set[Place]) -> Iterable[str]:
        """A pod and its intent change together or not at all."""
        places = {(node, instance) for _, node, instance in pods} | intents
        for place in sorted(places):
            if line := self.disagreement(place):
                yield line

    def disagreement(self, place: Place) -> str:
        """How the pods and the intent of a place contradict each other; empty: they do not."""
        owners = [owner for owner in self.owners() if self._kv.get(self._keys.pod(owner, *place)) is not None]
        if len(owners) > 1:
            return f"{place} has the owners {owners}"
        pair = self._kv.get(self._keys.intent(*place))
        intent = self._record(Intent, pair)
        if not owners:
            text = "" if pair is None else f"{place} has an intent and no pod"
        else:
            pod = self._record(Pod, self._kv.get(self._keys.pod(owners[0], *place)))
            if intent is None:
                text = f"the pod {owners[0]} {place} has no intent"
            elif pod is not None and (intent.owner, intent.manifest) != (owners[0], pod.manifest):
                text = f"the pod {owners[0]} {place} says {pod.manifest[:8]}, its intent {intent}"
            else:
                text = ""
        if not text:
            self.tampered.discard(place)
        return "" if place in self.tampered else text

    def owners(self) -> list[str]:
        """Whoever has pods."""
        now = (key for key in (pair.key for pair in self._kv.under(self._keys.tree("pods"))))
        return sorted({self._keys.pod_parts(key)[0] for key in now if not is_sentinel(key)})

    def _counted(self, moment: _Moment, rc: ReplicationController) -> Iterable[str]:
        """Removals end at the desired count and so do additions; a move may stand on both feet."""
        mine = [key for key in self._pods if self._keys.pod_parts(key)[0] == rc.id]
        before, gone = len(mine), len({p for p in moment.gone if p[0] == rc.id})
        after = before - gone + len({p for p in moment.added if p[0] == rc.id})
        pair = any(audit.action == "transfer.finish" for audit in moment.audits)
        if gone and after < min(before - pair, rc.replicas_desired) and not self._forced(moment):
            yield f"{rc.name}: from {before} to {after} pods, desired are {rc.replicas_desired}"
        moving = 1 if any(audit.action.startswith("transfer") for audit in moment.audits) else 0
        if moment.added and after > max(before, rc.replicas_desired + moving):
            yield f"{rc.name}: from {before} up to {after} pods, desired are {rc.replicas_desired}"

    def _forced(self, moment: _Moment) -> bool:
        """Whether the pods leave nodes that a person drains by force."""
        for _, node, _ in moment.gone:
            record = self._record(Node, self._kv.get(self._keys.node(node)))
            if record is None or record.drain is None or not record.drain.ignores_floor:
                return False
        return True

    def _placed_well(self, moment: _Moment, rc: ReplicationController) -> Iterable[str]:
        """Nothing new on nodes where the controller may not place."""
        selector = parse(rc.node_selector)
        for _, node, _ in moment.added:
            keys = self._keys.node(node), self._keys.agent(node), self._keys.record("rcs", rc.id)
            record = self._record(Node, self._kv.get(keys[0]))
            agent = self._record(Agent, self._kv.get(keys[1]))
            if not self._settled(*keys):
                continue
            if record is None or record.cordoned or record.drain is not None:
                yield f"{rc.name}: placed on {node}, which takes nothing: {record}"
            elif agent is None:
                yield f"{rc.name}: placed on {node}, whose agent is not there"
            elif not selector.matches(effective_labels(record, agent)):
                wanted = rc.node_selector
                yield f"{rc.name}: placed on {node}, whose labels {record.labels} do not fit {wanted!r}"

    def _thawed(self, moment: _Moment, rc: ReplicationController, audit: Audit) -> Iterable[str]:
        """While frozen nothing is removed or moved, but by a person's command (R18)."""
        freeze, pair = self._record(Failsafe, moment.freeze), moment.rcs[rc.id]
        if not moment.gone or not frozen(freeze, self._clock.now()) or moment.freeze is None or pair is None:
            return
        commanded = pair.modify_index > moment.freeze.create_index
        if not commanded and self._settled(self._keys.failsafe("rcs")):
            yield f"{rc.name}: {audit.action} removed {sorted(moment.gone)} while frozen: {freeze}"

    def _gently(self, moment: _Moment, rc: ReplicationController) -> Iterable[str]:
        """By our own doing at most ``max_unavailable`` pods do not serve."""
        mine = {parts[1:] for key in self._pods if (parts := self._keys.pod_parts(key))[0] == rc.id}
        gone = {(node, instance) for owner, node, instance in moment.gone if owner == rc.id}
        down = (self._down.get(rc.id, set()) & mine) - gone
        fresh = {
            place
            for owner, *rest in moment.changed
            if owner == rc.id
            and (place := (rest[0], rest[1])) not in down
            and self._served(owner, place)
            and self._settled(
                self._keys.reality(*place),
                self._keys.work("nodes", place[0]),
                self._keys.pod(owner, *place),
            )
        }
        moving = any(audit.action.startswith("transfer") for audit in moment.audits)
        coming = 0 if moving else len({pod for pod in moment.added if pod[0] == rc.id})
        if fresh and len(fresh | down) + coming > rc.max_unavailable:
            yield (
                f"{rc.name}: {sorted(fresh)} taken down while {sorted(down)} still are and {coming} come,"
                f" of {rc.max_unavailable}"
            )

    def _served(self, owner: str, place: Place) -> bool:
        """Whether what the pod said before runs there and passes its check; of lost nodes nobody knows."""
        work = self._record(Work, self._kv.get(self._keys.work("nodes", place[0])))
        if work is not None and work.lost_since > 0:
            return False
        reality = self._record(Reality, self._kv.get(self._keys.reality(*place)))
        return healthy(reality, self._pods.get(self._keys.pod(owner, *place), ""))
