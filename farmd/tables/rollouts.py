"""Why each pod of a rollout stays or goes, by the planner's own classes, over one read of the store."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from farmd import overview
from farmd.commands import fleet
from farmd.commands.mutation import Call
from farmd.pods.state import PodState
from farmd.rollout import commands, fitting, membership, nodes, noun, progress
from farmd.rollout.facts import Side, Snapshot, mixes
from farmd.rollout.membership import floored
from farmd.tables.model import Column, Table
from scheduler.decide import allocation, eligibility
from store import manifests
from store.pods import Place
from store.rcs import ReplicationController
from store.rollouts import Rollout, RolloutState
from store.times import plain

MISSING = "missing"


class RolloutPodRow(msgspec.Struct, frozen=True):
    """One pod of a rollout, or one that is missing.

    ``fate``: whether it ``goes`` in this stage, in the order of the rows, or ``stays``; a pod that is missing
    ``comes``. ``kind`` is its class: missing, lost, idle, must leave, serving or unknown.
    """

    side: str
    pod: str
    fate: str
    kind: str
    state: str
    reason: str


async def explain(call: Call, target: str) -> list[RolloutPodRow]:
    """The pods that go, in their order, then those that stay, then those that are missing.

    Raises:
        NotFound: there is no such rollout, or one of its controllers is gone.
    """
    rollout = (await noun.ROLLOUT.look(call, target)).record
    state, _ = await commands.phase(call, rollout)
    if nodes.over_nodes(rollout):
        return await _explained(call, rollout, state)
    old, new = await _side(call, rollout, rollout.old), await _side(call, rollout, rollout.new)
    shot = Snapshot(rollout=rollout, state=state, old=old, new=new, now=call.clock.now())
    going, staying = _leaving(shot)
    return [*going, *staying, *await _missing(call, shot, going)]


async def _explained(call: Call, rollout: Rollout, state: RolloutState | None) -> list[RolloutPodRow]:
    """The pods of a rollout over nodes: its daemon set's worker chooses those that go."""
    daemonset = (await nodes.daemon_sets().records(call.client, call.keys).get(rollout.old)).record
    pods = await overview.states(call.client, call.keys, daemonset)
    sized, old, new = nodes.sides(daemonset, rollout, pods, back=state is not None and state.back)
    shot = Snapshot(rollout=sized, state=state, old=old, new=new, now=call.clock.now())
    return [
        replace(_row(shot, side, place, "stays"), side=word)
        for word, side in (("old", old), ("new", new))
        for place in sorted(side.pods)
    ]


async def _side(call: Call, rollout: Rollout, ident: str) -> Side:
    rc = (await noun.controller().records(call.client, call.keys).get(ident)).record
    stop_after = (await manifests.read(call.client, call.keys, rc.manifest)).stop_after
    pods = await overview.states(call.client, call.keys, rc)
    return Side(rc, pods, stop_after, mixed=mixes(rollout, rc))


def _leaving(shot: Snapshot) -> tuple[list[RolloutPodRow], list[RolloutPodRow]]:
    """The pods that go in this stage, and those that stay."""
    source, target = shot.sides
    goal, floor = progress.goal(shot), progress.floor(shot)
    stay, there = (goal.new, goal.old) if shot.back else (goal.old, goal.new)
    short = source.serving + target.serving <= floor
    old, new = (target, source) if shot.back else (source, target)
    held = floored(floor, old.serving, new.serving, "/".join(target.ailing or ()))
    going, staying, gone = list[RolloutPodRow](), list[RolloutPodRow](), set[tuple[str, Place]]()
    for side, surplus in ((source, source.desired - stay), (target, target.desired - there)):
        for each in membership.leaving(side, shot.now)[: max(0, surplus)]:
            if each.place is not None:
                gone.add((side.rc.id, each.place))
                row = _row(shot, side, each.place, "goes")
                going.append(replace(row, reason=held) if each.cost and short else row)
    for side in (source, target):
        places = sorted(place for place in side.pods if (side.rc.id, place) not in gone)
        staying += [_row(shot, side, place, "stays") for place in places]
    return going, staying


def _row(shot: Snapshot, side: Side, place: Place, fate: str) -> RolloutPodRow:
    state = side.pods[place]
    row = overview.pod_row(side.rc.id, side.rc.name, place, state)
    phase_, reason = "healthy" if row.healthy else row.phase, _why(side, state) or row.reason
    kind = membership.named(side, state, shot.now)
    return RolloutPodRow(_word(shot, side.rc), "/".join(place), fate, kind, phase_, reason)


def _why(side: Side, state: PodState) -> str:
    """What decides about a pod beside its health."""
    if state.foreign(side.rc.id):
        return "its intent is another owner's, which only a person may repair"
    if state.lost is not None:
        return "its node is lost" + (", and its pods are waited for" if side.rc.on_lost == "wait" else "")
    return f"its node is drained ({state.draining})" if state.draining else ""


def _word(shot: Snapshot, rc: ReplicationController) -> str:
    return "old" if rc.id == shot.rollout.old else "new"


async def _missing(call: Call, shot: Snapshot, going: list[RolloutPodRow]) -> list[RolloutPodRow]:
    """Pods without a place: those missing on a side, and those that cannot take the place of an old pod."""
    source, target = shot.sides
    pods = noun.controller().pods
    assert pods is not None
    view = (await fleet.read(call.client, call.keys)).view({source.rc.id, target.rc.id})
    manifest = await manifests.read(call.client, call.keys, target.rc.manifest)
    request = pods.request(target.rc, manifest)
    rolling = shot.rollout.policy.strategy == "rolling"  # else no pod takes the place of another
    goes = {row.pod for row in going} if rolling else set()
    leave = {place for place in source.pods if "/".join(place) in goes}
    asked = fitting.question(request, source.rc.id, sorted(leave))
    unfit = leave - fitting.places(asked, eligibility(asked, view), view)
    there = progress.goal(shot).old if shot.back else progress.goal(shot).new
    count = target.missing + (len(unfit) if rolling else max(0, there - target.desired))
    if not count:
        return []
    elsewhere = replace(request, leaving=frozenset(unfit))
    found = allocation(elsewhere, count, view)
    reason = found.why if found.missing else "a free node has room"
    row = RolloutPodRow(_word(shot, target.rc), f"({count} elsewhere)", "comes", MISSING, "", reason)
    return [row]


async def explained(call: Call, rollout: Rollout) -> list[tuple[str, Table]]:
    """Why each pod of a rollout stays or goes."""
    return [("Pods", explanation(await explain(call, rollout.id)))]


def explanation(rows: list[RolloutPodRow]) -> Table:
    """One line a pod, those that go in this stage first."""
    return Table(
        kind="RolloutExplanation",
        rows=rows,
        columns=(
            Column("SIDE", lambda row: row.side),
            Column("POD", lambda row: row.pod),
            Column("FATE", lambda row: row.fate),
            Column("CLASS", lambda row: row.kind),
            Column("STATE", lambda row: row.state),
            Column("REASON", lambda row: row.reason),
        ),
        name=lambda row: f"pod/{row.pod}",
        plain=plain,
        empty="no pods",
    )
