"""Rollouts over nodes: a new version comes to the pods of a daemon set in place, stage by stage.

The daemon set's own worker changes its pods, at the daemon set's pace, and a rollout only says on how many
nodes the new version shall run (``coming_to``). So nothing changes hands: both sides of the snapshot are pods
of one daemon set, by their manifests. What must never break: the new version is on no more nodes than the
stage asks for, and while the rollout is held it reaches no further node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from farmd import kinds
from farmd.commands.noun import Noun
from farmd.farm.writer import Write
from farmd.pods.state import PodState
from farmd.rollout import progress
from farmd.rollout.facts import FACTS, Facts, Need, Reader, Side, Snapshot, Turn, of_rollout
from farmd.rollout.noun import ROLLOUT
from farmd.work import hands
from farmd.work.context import Context
from store import operations
from store.daemonsets import KIND as DAEMON_SETS
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.families import DAEMONSETS
from store.locks import Holder
from store.named import decode_named
from store.operations import Operation
from store.pods import Place
from store.rcs import ReplicationController, Reverted
from store.rollouts import KIND, Ended, History, Rollout, RolloutStatus
from store.work import Work


def daemon_sets() -> Noun[Any, DaemonSet]:
    """The noun of daemon sets: another kind's, so the registry names it."""
    return kinds.asked(DAEMONSETS.name)


def over_nodes(rollout: Rollout) -> bool:
    """Whether it is a daemon set's."""
    return rollout.of == DAEMON_SETS


# -- the snapshot --------------------------------------------------------------------------------
def sides(
    daemonset: DaemonSet, rollout: Rollout, pods: Mapping[Place, PodState], *, back: bool
) -> tuple[Rollout, Side, Side]:
    """The rollout as large as the daemon set is now, and its pods of both versions: pure.

    A pod on a silent node counts only if it has the version that is coming, or the old one on the way back.
    The rollout does not wait for other pods there. Where there is no other pod of that version, it is waited
    for, because nothing proves the version then. Pods of superseded versions are among the new ones, as pods
    to replace.
    """
    here = _one_a_node(pods, rollout, back=back)
    away = {place for place, state in here.items() if state.absent or state.lost is not None}
    versions = {rollout.to_manifest, *rollout.superseded}
    new = {place for place, state in here.items() if state.pod.record.manifest in versions}
    own = {place for place in new if here[place].pod.record.manifest == rollout.to_manifest}
    target = here.keys() - new if back else own
    counted = {place: here[place] for place in here if place in target or place not in away}
    if target - away:
        waived = {place: msgspec.structs.replace(here[place], lost=0.0) for place in target & away}
    else:
        waived = {place: msgspec.structs.replace(here[place], lost=None) for place in target & away}
    counted |= waived
    total = len(counted)
    renewed = daemonset.renewed(total)
    # Whether pods start beside or in place of others is the daemon set's: both ways a node counts once.
    least = min(total, daemonset.floor(total))
    policy = msgspec.structs.replace(rollout.policy, minimum=least, strategy="rolling")
    sized = msgspec.structs.replace(rollout, replicas=total, started_from=total, policy=policy)
    return (
        sized,
        Side(
            _as_controller(daemonset, rollout.from_manifest, total - renewed), _of(counted, new, wanted=False)
        ),
        Side(
            _as_controller(daemonset, rollout.to_manifest, renewed),
            _of(counted, new, wanted=True),
            mixed=bool(rollout.superseded),
        ),
    )


def _one_a_node(pods: Mapping[Place, PodState], rollout: Rollout, *, back: bool) -> dict[Place, PodState]:
    """The pods that may stay; of two on a node the one of the version that it goes to."""

    def rank(place: Place) -> tuple[bool, bool, Place]:
        new = pods[place].pod.record.manifest == rollout.to_manifest
        return new != back, pods[place].available, place

    found = dict[str, Place]()
    for place in sorted((place for place in pods if pods[place].retained), key=rank):
        found[place[0]] = place
    return {place: pods[place] for place in sorted(found.values())}


def sized(rollout: Rollout, status: RolloutStatus) -> Rollout:
    """The rollout as large as its farm saw the daemon set last."""
    total = max(1, status.old.desired + status.new.desired)
    policy = msgspec.structs.replace(rollout.policy, strategy="rolling")
    return msgspec.structs.replace(rollout, replicas=total, started_from=total, policy=policy)


def _of(counted: Mapping[Place, PodState], new: set[Place], *, wanted: bool) -> dict[Place, PodState]:
    return {place: state for place, state in counted.items() if (place in new) == wanted}


def _as_controller(daemonset: DaemonSet, manifest: str, count: int) -> ReplicationController:
    """One version of a daemon set, as a plan sees it: its pods on lost nodes are waited for."""
    return ReplicationController(
        id=daemonset.id,
        name=daemonset.name,
        manifest=manifest,
        replicas_desired=count,
        pod_id=daemonset.pod_id,
        disabled=daemonset.disabled,
        labels=daemonset.labels,
        min_healthy_time=daemonset.min_healthy_time,
        on_lost="wait",
    )


class NodeReader(Reader):
    """Reads for one rollout of a daemon set."""

    async def read(self, stored: Stored[Rollout]) -> Facts:
        """The rollout, its daemon set and the pods."""
        context, rollout = self._context, stored.record
        work = context.caches.work.get(context.keys.work(KIND, self._item))
        state = work.record.rollout if work is not None else None
        found, locked = await self._daemonset(rollout)
        back = state is not None and state.back
        frozen = self.freezes(stored, back=back or rollout.wish == "revert").evidence()
        old = new = None
        sized, spread, away = rollout, None, 0
        if found is not None:
            least = rollout.policy.min_healthy_time
            daemonset = found.record
            own = _as_controller(daemonset, daemonset.manifest, 0)
            pods = self.pods(own, daemonset.min_healthy_time if least is None else least)
            sized, old, new = sides(daemonset, rollout, pods, back=back)
            spread = (daemonset.coming_to, daemonset.coming_held)
            away = sum(state.absent or state.lost is not None for state in pods.values())
        snapshot = Snapshot(
            rollout=sized,
            state=state,
            old=old,
            new=new,
            frozen=frozen,
            frozen_for=self._frozen_for(frozen),
            curable=frozen is not None and self.freezes(stored, back=True).evidence() is None,
            locked=locked,
            locks=True,
            risen=self._progress(state, old if back else new),
            now=context.clock.now(),
            unread=FACTS,
            spread=spread,
            away=away,
        )
        return Facts(stored=stored, work=work, snapshot=snapshot, daemonset=found)

    async def _daemonset(self, rollout: Rollout) -> tuple[Stored[DaemonSet] | None, str]:
        """The daemon set, and the other holder of its mutation lock.

        Raises:
            NotRegistered: it is missing, and so may be the whole tree.
            RecordInvalid: it does not decode.
        """
        keys, client = self._context.keys, self._context.client
        key = keys.record(DAEMON_SETS, rollout.old)
        entry = await client.read(key)
        if entry is None:
            # A tree that lost its sentinel is no evidence that a daemon set was deleted (R20).
            await self._context.caches.tree(DAEMONSETS).barrier([key])
            return None, ""
        lock = await client.read(keys.mutation_lock(DAEMON_SETS, rollout.old))
        holder = Holder.parse(lock.value) if lock is not None and not of_rollout(lock, self._item) else None
        return decode_named(DaemonSet, keys, entry), f"{holder.kind}/{holder.id}" if holder else ""

    async def refresh(self, shot: Snapshot) -> bool:  # noqa: ARG002
        """Nothing: the daemon set's worker changes the pods."""
        return False

    async def answer(self, reading: Facts, need: Need) -> Facts:
        """Nothing is asked: the daemon set's worker chooses nodes."""
        raise NotImplementedError(f"a rollout over nodes needs no {need.fact}")


# -- writing -------------------------------------------------------------------------------------
def turn(reading: Facts, change: Turn, context: Context) -> list[Write | Operation]:
    """A transition: the phase, and on how many nodes the new version shall run from then on."""
    shot, stored, rollout = reading.snapshot, reading.daemonset, reading.stored.record
    assert stored is not None
    writes = list[Write | Operation]()
    if change.state != shot.state:
        known = reading.work.record if reading.work is not None else Work()
        record = msgspec.structs.replace(known, rollout=change.state)
        writes.append(
            Write.over(context.keys.work(KIND, rollout.id), record, reading.work, context.caches.work)
        )
    to, held = progress.spread(replace(shot, state=change.state))
    fields = {"coming": rollout.to_manifest, "coming_to": to, "coming_held": held}
    return [*writes, _written(stored, context, **fields)]


def end(
    reading: Facts, change: Turn, context: Context, known: Sequence[Stored[Ended]]
) -> list[Write | Operation]:
    """The rollout is over: its record goes, and the daemon set has one version."""
    rollout, stored = reading.stored.record, reading.daemonset
    own = ROLLOUT.records(context.client, context.keys)
    writes: list[Write | Operation] = [*own.delete(reading.stored)]
    if stored is None:
        writes.append(operations.check_not_exists(context.keys.record(DAEMON_SETS, rollout.old)))
    else:
        daemonset, failed = stored.record, change.outcome == "reverted" and not rollout.wish
        told = Reverted(
            manifest=rollout.to_manifest,
            kept=rollout.from_manifest,
            reason=change.reason,
            at=context.clock.now(),
        )
        done = change.outcome == "done"
        fields: dict[str, Any] = {
            "manifest": rollout.to_manifest if done else daemonset.manifest,
            "reverted": None if done else told if failed else daemonset.reverted,
        }
        writes.append(_written(stored, context, **hands.freed(daemonset), **fields))
    version = _as_controller(
        stored.record if stored is not None else DaemonSet(id=rollout.old, name=rollout.name, manifest="-"),
        rollout.from_manifest,
        0,
    )
    ended = Ended(
        id=rollout.id,
        name=rollout.name,
        of=rollout.of,
        outcome=change.outcome,
        from_manifest=rollout.from_manifest,
        to_manifest=rollout.to_manifest,
        old=version,
        replicas=reading.snapshot.rollout.replicas,
        new=rollout.new,
        reason=change.reason,
        by=rollout.by,
        began=rollout.at,
        ended=context.clock.now(),
    )
    return [*writes, *History(context.client, context.keys, rollout.of).add(ended, known)]


def _written(stored: Stored[DaemonSet], context: Context, **fields: Any) -> Write:
    record = msgspec.structs.replace(stored.record, **fields)
    return Write.over(stored.key, record, stored, context.caches.tree(DAEMONSETS))
