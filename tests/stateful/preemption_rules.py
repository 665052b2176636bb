"""What holds of every change that preemption makes: who waits for room, and who goes for whom.

Written from what the documentation promises (``docs/scheduling.md``), not from how victims are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable

from store.failsafe import Failsafe, frozen
from store.manifests import Manifest
from store.nodes import Node, Reserved
from store.rcs import ReplicationController
from store.work import Work
from tests.stateful.moment import Look, Moment, Place

ROUNDING = 1e-9


def nominated(look: Look, moment: Moment, rc: ReplicationController) -> Iterable[str]:
    """Nobody waits for more places than it misses, nor where there is room, nor while frozen."""
    key = look.keys.failsafe("rcs")
    freeze, known = look.record(Failsafe, moment.before[key]), not look.troubled(moment.farm)
    if known and look.settled(key) and moment.before[key] and frozen(freeze, look.clock.now()):
        yield f"{rc.name} nominated itself while frozen: {freeze}"
    waits = [place for place, owner in _waiting(look).items() if owner == rc.id]
    if len(waits) > (missing := _missing(look, rc)):
        yield f"{rc.name} waits at {sorted(waits)} and misses {missing}"
    for node, before, after in _books(look, moment):
        for instance in sorted(after.nominations.keys() - before.nominations.keys()):
            yield from _short(look, node, before, instance, after.nominations[instance].amounts, rc)


def evicted(look: Look, moment: Moment, rc: ReplicationController) -> Iterable[str]:
    """Whoever goes is outranked by who waits, is in the way, and leaves no fewer than the health floor."""
    gone = sorted((node, instance) for owner, node, instance in moment.gone if owner == rc.id)
    if moment.added or moment.changed or not gone:
        yield f"{rc.name} evicted {gone}, added {moment.added} and changed {moment.changed}"
    books = {node: before for node, before, _ in _books(look, moment)}
    for node, instance in gone:
        if node not in books:
            yield f"{rc.name}: {instance} left {node} for others, whose record was not compared"
            continue
        yield from _outranked(look, node, instance, books[node])
    yield from _above_floor(look, moment, rc, gone)


def _outranked(look: Look, node: str, instance: str, before: Reserved) -> Iterable[str]:
    rank = before.priority(instance)
    higher = [one for one in before.nominations.values() if one.priority > rank]
    wanted = sum(one.amounts.get("cpu", 0.0) for one in higher)
    if not higher:
        yield f"{node}/{instance} of priority {rank} went for {before.nominations}"
    elif _used(before) + wanted <= _capacity(look, node) + ROUNDING and look.settled(look.keys.node(node)):
        yield f"{node}/{instance} went although there is room for {before.nominations}"


def _above_floor(look: Look, moment: Moment, rc: ReplicationController, gone: list[Place]) -> Iterable[str]:
    mine = look.pods(rc.id)
    places = [*mine, *gone]
    keys = [look.keys.reality(*place) for place in places]
    keys += [look.keys.work("nodes", place[0]) for place in places]
    if look.troubled(moment.farm) or not look.settled(*keys) or look.blind(*places):
        return
    serving = [place for place in mine if look.serves(rc.id, place) and not look.lost(place[0])]
    least = rc.replicas_desired - rc.max_unavailable
    if any(look.served(rc.id, place) for place in gone) and len(serving) < least:
        yield f"{rc.name}: {gone} went for others, {serving} still serve, at least {least} must"


def _short(
    look: Look, node: str, before: Reserved, instance: str, asked: dict[str, float], rc: ReplicationController
) -> Iterable[str]:
    """Waiting is for those who ask for what they get, where that is not to be had."""
    manifest = look.at(Manifest, look.keys.manifest(rc.manifest))
    if manifest is not None and asked != manifest.resources:
        yield f"{rc.name} waits at {node}/{instance} for {asked}, not for {manifest.resources}"
    others = sum(one.amounts.get("cpu", 0.0) for one in before.nominations.values())
    room = _capacity(look, node) - _used(before) - others
    if asked.get("cpu", 0.0) <= room and look.settled(look.keys.node(node)):
        yield f"{rc.name} waits at {node}/{instance} for {asked}, where {room} cpu are free"


def _missing(look: Look, rc: ReplicationController) -> int:
    """How many pods an owner may wait for: those that are missing, and those that must be replaced."""
    staying = [place for place in look.standing(rc.id) if not _given_up(look, place[0])]
    work = look.at(Work, look.keys.work("rcs", rc.id))
    moving = 1 if work is not None and work.transfer is not None else 0
    return max(0, rc.replicas_desired - len(staying)) + moving


def _given_up(look: Look, node: str) -> bool:
    record = look.at(Node, look.keys.node(node))
    forced = record is not None and record.drain is not None and record.drain.ignores_floor
    return forced or look.lost(node)


def _waiting(look: Look) -> dict[Place, str]:
    """Who waits where."""
    found = {}
    for key in look.under("reserved"):
        book = look.at(Reserved, key) or Reserved()
        node = look.keys.last_part(key)
        found |= {(node, instance): one.owner for instance, one in book.nominations.items()}
    return found


def _books(look: Look, moment: Moment) -> Iterable[tuple[str, Reserved, Reserved]]:
    """The nodes whose reservations a transaction changes, before and after it."""
    for op in moment.writes:
        if op.key.startswith(look.keys.tree("reserved")):
            before = look.record(Reserved, moment.before[op.key]) or Reserved()
            yield look.keys.last_part(op.key), before, look.at(Reserved, op.key) or Reserved()


def _used(book: Reserved) -> float:
    return sum(amounts.get("cpu", 0.0) for amounts in book.instances.values())


def _capacity(look: Look, node: str) -> float:
    record = look.at(Node, look.keys.node(node))
    return record.capacity.get("cpu", 0.0) if record is not None else 0.0
