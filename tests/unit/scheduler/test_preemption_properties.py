"""What preemption promises, whatever stands on the nodes and whoever waits for room there."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.decide import allocation
from scheduler.feasibility import TOLERANCE, room_reasons, standing_reasons
from scheduler.fleet import owners, used_amounts
from scheduler.model import Assignment, FleetView, NodeView, PodView, Request
from scheduler.preemption import preempt
from scheduler.requirement import compile_request
from scheduler.reservations import change_reservations, nominate
from scheduler.victims import clearing, victims
from store.nodes import Nomination, Reserved
from tests.fleets import OWNER, node, request

arbitrary = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
YIELDING = frozenset({"batch", "site", "late"})
PRIORITIES = st.sampled_from([0, 20, 49, 50, 80, 100])
_amounts = st.fixed_dictionaries(
    {"cpu": st.sampled_from([0.1, 0.5, 1.0, 2.0])}, optional={"gpu": st.just(1.0)}
)
_nomination = st.builds(
    Nomination,
    owner=st.sampled_from([OWNER, "first", "batch"]),
    priority=PRIORITIES,
    amounts=_amounts,
    since=st.sampled_from([1.0, 2.0, 3.0]),
)


@st.composite
def crowded(draw: st.DrawFn, name: str = "n") -> NodeView:
    """A node with pods of all priorities, perhaps over its capacity, and nominations."""
    capacity = draw(st.sampled_from([{"cpu": 1.0}, {"cpu": 2.0}, {"cpu": 4.0, "gpu": 2.0}]))
    names = draw(st.lists(st.sampled_from([f"p{n}" for n in range(7)]), unique=True, max_size=7))
    pods = {one: PodView(draw(st.sampled_from(["batch", "site", "late", "daemons", OWNER]))) for one in names}
    made = node(name, capacity=capacity, pods=pods, reserved={one: draw(_amounts) for one in names}, index=7)
    ranks = {one: draw(PRIORITIES) for one in names}
    book = msgspec.structs.replace(
        made.reserved,
        priorities={one: rank for one, rank in ranks.items() if rank != 50},
        nominations=draw(st.dictionaries(st.sampled_from(["a", "b", "web"]), _nomination, max_size=3)),
    )
    return msgspec.structs.replace(made, reserved=book)


@st.composite
def crowds(draw: st.DrawFn) -> FleetView:
    """Up to five such nodes."""
    return {name: draw(crowded(name)) for name in [f"n{at}" for at in range(draw(st.integers(1, 5)))]}


@st.composite
def questions(draw: st.DrawFn) -> Request:
    """Pods of some priority that need room."""
    asked = request(resources=draw(_amounts), per_node=draw(st.integers(1, 2)), yielding=YIELDING)
    manifest = msgspec.structs.replace(asked.manifest, priority=draw(PRIORITIES))
    return msgspec.structs.replace(asked, manifest=manifest)


def too_much(made: NodeView, served: Iterable[str], gone: Iterable[str]) -> bool:
    """Whether a node cannot hold what stays and what is served."""
    waiting = [made.reserved.nominations[name] for name in served]
    left = used_amounts(
        Reserved({name: a for name, a in made.reserved.instances.items() if name not in {*gone}})
    )
    return any(
        left.get(resource, 0.0) + sum(one.amounts.get(resource, 0.0) for one in waiting)
        > made.capacity.get(resource, 0.0) + TOLERANCE * 10
        for resource in {name for one in waiting for name in one.amounts}
    )


@arbitrary
@given(crowded())
def test_what_is_served_fits_and_no_victim_could_be_spared(made: NodeView) -> None:
    cleared = clearing(made, YIELDING)
    gone = {victim.instance for victim in cleared.victims}
    assert not too_much(made, cleared.served, gone)
    for spared in gone:
        assert too_much(made, cleared.served, gone - {spared})


@arbitrary
@given(crowded())
def test_a_victim_is_strictly_lower_than_whom_it_goes_for_and_never_one_that_stays(made: NodeView) -> None:
    for victim in victims(made, YIELDING):
        assert victim.owner in YIELDING
        assert made.reserved.instances[victim.instance]
        higher = {
            name: one for name, one in made.reserved.nominations.items() if one.priority > victim.priority
        }
        assert higher
        # Whoever is not higher than the victim could not have sent it away alone.
        rest = {name: one for name, one in made.reserved.nominations.items() if name not in higher}
        book = msgspec.structs.replace(made.reserved, nominations=rest)
        alone = victims(msgspec.structs.replace(made, reserved=book), YIELDING)
        assert victim not in alone


def shuffled(made: NodeView, seed: int) -> NodeView:
    def mixed(known: Any) -> Any:
        items = list(known.items())
        random.Random(seed).shuffle(items)
        return dict(items)

    book = Reserved(
        mixed(made.reserved.instances),
        made.reserved.generation,
        mixed(made.reserved.priorities),
        mixed(made.reserved.nominations),
    )
    return msgspec.structs.replace(made, pods=mixed(made.pods), reserved=book)


@arbitrary
@given(crowds(), questions(), st.integers(1, 4), st.integers(0, 9))
def test_equal_input_gives_equal_answers_in_whatever_order(
    view: FleetView, asked: Request, count: int, seed: int
) -> None:
    other = {name: shuffled(made, seed) for name, made in reversed(view.items())}
    assert preempt(asked, count, other) == preempt(asked, count, view)
    for name, made in view.items():
        assert clearing(other[name], YIELDING) == clearing(made, YIELDING)


@arbitrary
@given(crowds(), questions(), st.integers(1, 4))
def test_room_is_made_only_where_capacity_alone_is_short_and_for_no_more_than_are_missing(
    view: FleetView, asked: Request, count: int
) -> None:
    found = preempt(asked, count, view)
    requirement = compile_request(asked)
    assert len(found.keep) + len(found.add) <= count
    for nominee in found.add:
        made = view[nominee.node]
        codes = {r.code for r in standing_reasons(requirement, made) + room_reasons(requirement, made)}
        assert codes == {"capacity"}
        assert all(victim.priority < asked.manifest.priority for victim in nominee.victims)
    own = {
        (name, instance)
        for name, made in view.items()
        for instance, one in made.reserved.nominations.items()
        if one.owner == asked.owner
    }
    assert {nominee.place for nominee in found.keep} | set(found.drop) == own
    assert not {nominee.place for nominee in found.keep} & set(found.drop)


@arbitrary
@given(crowds(), questions(), st.integers(1, 4))
def test_switched_off_the_answers_are_those_of_before(view: FleetView, asked: Request, count: int) -> None:
    off = msgspec.structs.replace(asked, yielding=None)
    expected = allocation(off, count, view)
    assert expected.preemption is None
    assert msgspec.structs.replace(allocation(asked, count, view), preemption=None) == expected


def after(view: FleetView, changes: Iterable[Any], *, gone: Iterable[tuple[str, str]] = ()) -> FleetView:
    """The fleet once these reservations were committed and these pods are gone."""
    now = dict(view)
    for change in changes:
        made = now[change.node]
        left = {i: pod for i, pod in made.pods.items() if (change.node, i) not in {*gone}}
        now[change.node] = msgspec.structs.replace(
            made, reserved=change.record, used=used_amounts(change.record), pods=left, owners=owners(left)
        )
    return now


@arbitrary
@given(crowds(), questions(), st.integers(1, 4))
def test_what_was_nominated_fits_once_the_victims_are_gone_and_nobody_lower_gets_it(
    view: FleetView, asked: Request, count: int
) -> None:
    found = preempt(asked, count, view)
    now = after(view, nominate(view, asked, add=[one.place for one in found.add], drop=found.drop, since=9.0))
    for nominee in (*found.keep, *found.add):
        assert nominee.instance in clearing(now[nominee.node], YIELDING).served
    gone = [Assignment(name, v.instance) for name, made in now.items() for v in victims(made, YIELDING)]
    now = after(now, change_reservations(now, remove=gone), gone=[(g.node, g.instance) for g in gone])
    served = {name: clearing(made, YIELDING).served for name, made in now.items()}
    for name, made in now.items():
        assert not victims(made, YIELDING)  # enough is enough
        assert not too_much(made, served[name], ())
    lower = msgspec.structs.replace(
        asked,
        owner="lower",
        manifest=msgspec.structs.replace(asked.manifest, id="low", priority=0),
        yielding=None,
    )
    taken = allocation(lower, 9, now)
    stolen = after(now, taken.reservations)
    for name, made in stolen.items():
        assert taken.assignments == () or not too_much(made, served[name], ())
