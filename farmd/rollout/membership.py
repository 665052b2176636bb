"""Which pods a rollout moves now, and how many: pure (p2 ``pkg/roll.rollAlgorithm``, and what it waits for).

Pods that serve nobody leave first and cost nothing; a pod that serves, or may serve, leaves only while the
others keep the floor. What must never break: by our own doing no more serving pods leave than there are
available pods above the floor, neither count passes its goal, and both counts change with the pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from farmd.pods.state import PodState
from farmd.rollout.facts import Move, Moves, Need, Side, Snapshot
from farmd.rollout.stages import StageGoal, ceiling, goals, minimum
from scheduler.model import Assignment
from store.pods import Place
from store.words import count_of

# The arithmetic of the floor, in numbers and in words: pure.
#
# The numbers of pods that leave and come in one step are p2's (spec of ``pkg/roll.rollAlgorithm``).


def counts(
    old: int, new: int, old_desired: int, new_desired: int, total: int, minimum: int, limit: int
) -> tuple[int, int]:
    """(pods that leave the old side, pods that come to the new side) at most now.

    ``old`` and ``new`` are the sides' available pods, ``total`` how many there shall be in the end,
    ``minimum`` the floor, ``limit`` the new side's goal. What comes beyond what leaves needs fresh places.
    """
    old = min(old, old_desired)
    grow = max(0, total - (old_desired + new_desired))
    headroom = old + new - minimum + grow
    remaining = limit - new_desired
    if remaining <= 0:
        return 0, 0
    if new >= minimum:
        return max(0, remaining - grow), remaining
    if headroom <= 0:
        return 0, 0
    add = min(remaining, headroom)
    return max(0, add - grow), add


def floored(floor: int, old: int, new: int, ailing: str = "") -> str:
    """``floor 9 = 7 old + 2 new: nothing may leave until n7/web is available``.

    ``old`` and ``new`` are available pods, ``ailing`` the first pod that came and is not available yet.
    """
    sign = "=" if old + new == floor else ">" if old + new < floor else "<"
    told = f"floor {floor} {sign} {old} old + {new} new"
    if old + new > floor:
        return f"{told}: {old + new - floor} may leave"
    until = f" until {ailing} is available" if ailing else ""
    return f"{told}: nothing may leave{until}"


# The most operations that the moves of one transaction may need beside its frame, and what each way needs
# (R25).
ROOM = 54
IN_PLACE, ELSEWHERE, REMOVED, ADDED = 5, 9, 5, 4
# How many pods behind those that leave now are looked at, in case that there is no other place for some.
BEHIND = 30

# In the order in which pods leave; what is missing leaves before all of them.
CLASSES = ("lost", "idle", "must leave", "must leave", "serving", "unknown", "lost")


@dataclass(frozen=True, slots=True)
class Leaving:
    """A pod of the source that may leave, or one that only its count has; ``cost``: available pods lost."""

    place: Place | None
    cost: int


def leaving(side: Side, now: float) -> list[Leaving]:
    """The pods that may leave, in this order: missing, replaceable on a lost node, down, must leave its node,
    serving, unknown, staying on a lost node; by place in each class. A pod whose intent is another owner's
    stays, as only a person may change that; and one on a lost node until it must have stopped there (R27).
    """
    own = [(place, state) for place, state in side.pods.items() if _may_leave(side, state, now)]
    found = sorted((*_class(side, state, now), place) for place, state in own)
    return [Leaving(None, 0)] * side.missing + [Leaving(place, cost) for _, cost, place in found]


def _may_leave(side: Side, state: PodState, now: float) -> bool:
    if state.foreign(side.rc.id):
        return False
    return state.lost is None or side.rc.on_lost == "wait" or side.replaceable(state, now)


def _class(side: Side, state: PodState, now: float) -> tuple[int, int]:
    """(rank, cost)."""
    if state.lost is not None:
        return (1, 0) if side.replaceable(state, now) else (7, 0)
    if state.unknown:
        return 6, 1
    if state.down:
        return 2, 0
    if state.draining == "forced":
        return 3, 0
    return (5, 1) if state.retained and not state.draining else (4, 1)


def named(side: Side, state: PodState, now: float) -> str:
    """The class in a word."""
    return CLASSES[_class(side, state, now)[0] - 1]


def costly(shot: Snapshot, moves: Moves) -> bool:
    """Whether a pod leaves that serves, or may serve."""
    pods = {**shot.sides[0].pods, **shot.sides[1].pods}
    leave = [pods[move.source] for move in moves.moves if move.source is not None]
    return any(_class(shot.sides[0], state, shot.now)[1] for state in leave)


def plan(shot: Snapshot, goal: StageGoal, floor: int) -> Moves | Need:
    """The moves of one transaction, or the fact that they rest on."""
    chosen = _chosen(shot, goal, floor)
    found = _offered(shot, chosen) if chosen else Moves(short=_short(shot))
    return restored(shot, found, goal, floor)


def restored(shot: Snapshot, found: Moves | Need, goal: StageGoal, floor: int) -> Moves | Need:
    """What was found, or if that moves nothing: pods of the source that the stage does not take, and that are
    missing or must leave their nodes, get other places. Says what is waited for where nothing moves."""
    if isinstance(found, Need) or found.moves:
        return found
    source, target = shot.sides
    staying = leaving(source, shot.now)[max(0, source.desired - (goal.new if shot.back else goal.old)) :]
    alone = shot.rollout.policy.strategy == "blue-green"  # the service names this version only
    headroom = source.serving - floor + (0 if alone else target.serving)
    chosen = list(_replaced("restore", source, staying, headroom, shot.now))
    if chosen and "homes" in shot.unread:
        return Need("homes", len(chosen), tuple(move.source for move in chosen if move.source is not None))
    homes = zip(chosen, shot.homes.assignments, strict=False)
    moves = tuple(Move(move.way, move.source, place) for move, place in homes)[: ROOM // ELSEWHERE]
    short = found.short or (shot.homes.why if shot.homes.missing else "")
    return Moves(moves, waiting=short or ("" if moves else waits(shot, goal, floor)), short=short)


def grown(shot: Snapshot, count: int, stay: int, floor: int) -> Moves | Need:
    """Pods that come to the target until it has ``count``; it never takes a place of the source's.

    On the way back pods of the source that serve nobody go at once, until only ``stay`` are left.
    """
    source, target = shot.sides
    headroom = source.serving + target.serving - floor - _aside(shot)
    if target.outdated and target.desired >= count:
        return _offered(shot, _superseding(shot, target.desired - count, headroom, floor))
    if target.desired > count:
        return _offered(shot, list(_less("trim", target, target.desired - count, headroom, shot.now)))
    chosen = [*_kept(shot, headroom, floor), *[Move("grow")] * (count - target.desired)]
    idle = [each for each in leaving(source, shot.now) if shot.back and not each.cost]
    return _offered(shot, chosen + [Move("drop", each.place) for each in idle[: source.desired - stay]])


def _superseding(shot: Snapshot, surplus: int, headroom: int, floor: int) -> list[Move]:
    """Pods in place of those of a superseded version. Where the floor lets none of these leave, pods come
    beside them: one, and once that is available as many as there may be; of these a ``surplus`` is not
    replaced when it leaves.
    """
    source, target = shot.sides
    moves, outdated = _kept(shot, headroom, floor), set(target.outdated)
    for at, move in enumerate(moves):
        if surplus > 0 and move.source in outdated:
            moves[at], surplus = Move("trim", move.source), surplus - 1
    if moves or headroom > 0:
        return moves
    record = shot.rollout
    there = source.desired + source.terminating + target.desired
    room = ceiling(record, goals(record, minimum(record))) - there
    coming = sum(not state.available for state in target.own.values())
    wanted = len(outdated) if target.settled else 1
    return [Move("grow")] * max(0, min(room, wanted - coming))


def shrunk(shot: Snapshot, count: int, stay: int, floor: int) -> Moves | Need:
    """Pods that leave the source until it has ``count``, as far as the floor permits. Those that must leave
    their nodes, and on the way back those that serve nobody, do so until only ``stay`` are left."""
    source, target = shot.sides
    if source.desired < stay:
        return Moves((Move("raise"),) * (stay - source.desired))
    headroom, chosen = source.serving + target.serving - floor, list[Move]()
    for each in leaving(source, shot.now):
        early = (shot.back and not each.cost) or (
            each.place is not None and _goes(source, each.place, shot.now)
        )
        least = stay if early else count
        if source.desired - len(chosen) > least and each.cost <= max(0, headroom):
            headroom -= each.cost
            chosen.append(Move("drop", each.place))
    return _offered(shot, chosen)


def _aside(shot: Snapshot) -> int:
    """How many of the source's pods serve, but not in place of the target's: a service that the rollout
    switches names the target alone, from the switch on, and on the way back before it and after it is undone.
    """
    switched = shot.state is not None and shot.state.switched
    named = shot.rollout.policy.strategy == "blue-green" and switched != shot.back
    return shot.sides[0].serving if named else 0


def _offered(shot: Snapshot, chosen: list[Move]) -> Moves | Need:
    """The moves with the places that they need, as far as these are known."""
    standing = [move.source for move in chosen if move.source is not None and _in_place(shot, move)]
    if standing and "fit" in shot.unread:
        source, _ = shot.sides
        others = [each.place for each in leaving(source, shot.now) if each.place is not None]
        return Need("fit", leaving=tuple(dict.fromkeys(standing + others[: len(standing) + BEHIND])))
    return _placed(shot, chosen)


def _placed(shot: Snapshot, chosen: list[Move]) -> Moves | Need:
    """Give each new pod a place: that of the pod it replaces, or one from the scheduler."""
    done, elsewhere, room = list[Move](), list[Move](), ROOM
    for move in chosen:
        stays = move.source in shot.fit and _in_place(shot, move)
        goes = move.way in ("drop", "trim")
        comes = ADDED if move.source is None else ELSEWHERE
        room -= 0 if move.way == "raise" else REMOVED if goes else IN_PLACE if stays else comes
        if room < 0:
            break
        if stays and move.source is not None:
            done.append(Move(move.way, move.source, Assignment(*move.source)))
        else:
            (done if goes or move.way == "raise" else elsewhere).append(move)
    if elsewhere and "places" in shot.unread:
        gone = tuple(move.source for move in elsewhere if move.source is not None)
        return Need("places", len(elsewhere), gone)
    for move, place in zip(elsewhere, shot.offer.assignments, strict=False):
        done.append(Move(move.way, move.source, place))
    short = _short(shot)
    return Moves(tuple(done), waiting=short, short=short)


def _short(shot: Snapshot) -> str:
    """Why there are too few places; empty if there are enough, or none was needed."""
    return shot.offer.why if shot.offer.missing else ""


def _chosen(shot: Snapshot, goal: StageGoal, floor: int) -> list[Move]:
    """What should move now of those that the stage is about, before anything is known of places."""
    source, target = shot.sides
    stay, there = (goal.new, goal.old) if shot.back else (goal.old, goal.new)
    headroom = source.serving + target.serving - floor
    if source.desired < stay:
        return [Move("raise")] * (stay - source.desired)
    own = headroom - _aside(shot)
    if target.desired > there:
        return list(_less("trim", target, target.desired - there, own, shot.now))
    moves = _kept(shot, own, floor)
    if target.outdated:
        return moves  # the version that was superseded leaves before the old one
    headroom -= _cost(target, moves, shot.now)
    if target.desired < there:
        return moves + _transferred(shot, stay, there, floor, headroom)
    if not moves and source.desired > stay:
        moves = list(_less("drop", source, source.desired - stay, headroom, shot.now))
    return moves


def _less(
    way: Literal["drop", "trim"], side: Side, surplus: int, headroom: int, now: float
) -> Iterator[Move]:
    """Pods of a side that nothing replaces: there are to be fewer than there were."""
    for each in leaving(side, now)[:surplus]:
        if each.cost <= max(0, headroom):
            headroom -= each.cost
            yield Move(way, each.place)


def _transferred(shot: Snapshot, stay: int, there: int, floor: int, headroom: int) -> list[Move]:
    """Pods that go from the source to the target, and the target's growth."""
    source, target = shot.sides
    total = shot.rollout.started_from if shot.back else shot.rollout.replicas
    remove, add = counts(source.serving, target.settled, source.desired, target.desired, total, floor, there)
    remaining = there - target.desired
    # How many more pods of the target may be on their way at once.
    window = max(1, total - floor) - max(0, target.desired - target.settled - target.waived)
    chosen, most = list[Move](), min(remaining, source.desired - stay)
    for each in _leaving(source, shot):
        free = shot.back or len(chosen) < max(remove, window)
        allowed = len(chosen) < remove if each.cost else free
        if len(chosen) < most and allowed and each.cost <= max(0, headroom):
            headroom -= each.cost
            chosen.append(Move("take", each.place))
    grow = max(0, total - (source.desired + target.desired))
    fresh = min(remaining - len(chosen), grow, max(add - remove, window - len(chosen)))
    return chosen + [Move("grow")] * max(0, fresh)


def _leaving(source: Side, shot: Snapshot) -> Iterator[Leaving]:
    """The pods that leave. A pod that cannot be placed does not block pods that replace an existing pod in
    place.
    """
    places, known = len(shot.offer.assignments), "fit" not in shot.unread
    for each in leaving(source, shot.now):
        stays = each.place is not None and (each.place in shot.fit or not known)
        if shot.offer.missing and not stays:
            if not places:
                continue
            places -= 1
        yield each


def _goes(side: Side, place: Place, now: float) -> bool:
    """Whether a pod must leave its node, whatever the stage is about."""
    state = side.pods[place]
    return bool(state.draining) or side.replaceable(state, now)


def _refilled(shot: Snapshot, headroom: int) -> Iterator[Move]:
    _, target = shot.sides
    return _replaced("refill", target, leaving(target, shot.now), headroom, shot.now)


def _kept(shot: Snapshot, headroom: int, floor: int) -> list[Move]:
    """What the target needs besides growth: missing pods, and its version in place of a superseded one."""
    _, target = shot.sides
    moves = list(_refilled(shot, headroom))
    headroom -= _cost(target, moves, shot.now)
    return [*moves, *_renewed(shot, headroom, floor, moves)]


def _renewed(shot: Snapshot, headroom: int, floor: int, before: Sequence[Move]) -> Iterator[Move]:
    """Pods of superseded versions, as far as the floor of all versions permits: one until the first pod of
    the new version is available, then no more at once than may be on their way."""
    _, target = shot.sides
    outdated = set(target.outdated) - {move.source for move in before}
    coming = sum(not state.available and state.lost is None for state in target.own.values())
    total = shot.rollout.started_from if shot.back else shot.rollout.replicas
    most = max(1, headroom if shot.rollout.policy.beside else total - floor) if target.settled else 1
    left = most - coming - len(before)
    for each in leaving(target, shot.now):
        if each.place in outdated and left > 0 and each.cost <= max(0, headroom):
            left, headroom = left - 1, headroom - each.cost
            yield Move("refill", each.place)


def _in_place(shot: Snapshot, move: Move) -> bool:
    """Whether a pod takes the place of the other one if it fits there."""
    _, target = shot.sides
    if move.way == "refill" and move.source is not None:
        return move.source in target.outdated and not _goes(target, move.source, shot.now)
    return move.way == "take"


def _cost(side: Side, moves: Iterable[Move], now: float) -> int:
    return sum(_class(side, side.pods[move.source], now)[1] for move in moves if move.source)


def _replaced(
    way: Literal["refill", "restore"], side: Side, pods: Iterable[Leaving], headroom: int, now: float
) -> Iterator[Move]:
    """Of these pods those that the side lacks, those whose nodes are given up, and those that a drain asks to
    leave while the others keep the floor."""
    for each in pods:
        state = side.pods[each.place] if each.place is not None else None
        gone = state is None or side.replaceable(state, now) or state.draining == "forced"
        if gone or (state is not None and state.draining and each.cost <= max(0, headroom)):
            headroom -= each.cost
            yield Move(way, each.place)


def _told(shot: Snapshot) -> tuple[int, int]:
    """(old, new): what both controllers add to the floor."""
    source, target = shot.sides
    old, new = (target, source) if shot.back else (source, target)
    return old.serving, new.serving


def waits(shot: Snapshot, goal: StageGoal, floor: int) -> str:
    """What the rollout waits for, where nothing can move now."""
    source, target = shot.sides
    stay, there = (goal.new, goal.old) if shot.back else (goal.old, goal.new)
    if source.terminating and shot.rollout.policy.strategy != "rolling":
        return f"waiting for the end of {count_of(source.terminating, 'removed pod')}"
    ailing = f"{target.ailing[0]}/{target.ailing[1]}" if target.ailing is not None else ""
    short = source.serving + target.serving <= floor
    if target.outdated:
        left = count_of(len(target.outdated), "pod")
        return f"{left} of a superseded version to replace; {floored(floor, *_told(shot), ailing)}"
    if short and (target.desired < there or source.desired > stay):
        return floored(floor, *_told(shot), ailing)
    first = f": {ailing} is not available yet" if ailing else ""
    return f"{target.settled} of {target.desired} pods are available{first}"
