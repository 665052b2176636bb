"""What a farm claims, gives and releases (R7, R9, R10, R11), and that many farms together come to rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farmd.farm.members import Shares, preferred, rooms
from farmd.farm.plan import HAND_OVER_BATCH, SLACK, ClaimPlan, Item, Peer, Situation, decide
from tests.effort import tries

ME, OTHER = "farm-a", "farm-b"


def peer(name: str, *, settled: bool = True, draining: bool = False, since: float = 0.0) -> Peer:
    return Peer(name, f"session-of-{name}", settled, draining, since=since)


def items(names: Iterable[str]) -> dict[str, Item]:
    return {name: Item(name, 1) for name in names}


def situation(names: Iterable[str], prefer: Mapping[str, str], **fields: Any) -> Situation:
    claimable = items(names)
    defaults: dict[str, Any] = {
        "me": ME,
        "claimable": claimable,
        "held": set(),
        "mine": {},
        "peers": {ME: peer(ME), OTHER: peer(OTHER)},
        "preferred": prefer,
        "targets": prefer,
        "free_since": dict.fromkeys(claimable, 100.0),
        "not_before": {},
        "patience": 2.0,
        "now": 100.0,
        "above_since": 90.0,
    }
    return Situation(**(defaults | fields))


# -- taking ------------------------------------------------------------------------------------
def test_r7_own_items_are_taken_at_once_and_others_only_after_patience() -> None:
    plan = decide(situation("xy", {"x": ME, "y": OTHER}))
    assert plan.take == ["x"]
    assert plan.wake_at == 102.0


def test_r7_what_stayed_free_for_the_patience_is_taken() -> None:
    plan = decide(situation("xy", {"x": ME, "y": OTHER}, now=102.0))
    assert plan.take == ["x", "y"]
    assert plan.wake_at is None


def test_r6_what_is_held_is_not_tried() -> None:
    plan = decide(situation("xy", {"x": ME, "y": ME}, held={"x"}, mine={}))
    assert plan.take == ["y"]


def test_r10_nothing_is_taken_before_its_time() -> None:
    plan = decide(situation("x", {"x": ME}, not_before={"x": 130.0}))
    assert (plan.take, plan.wake_at) == ([], 130.0)
    assert decide(situation("x", {"x": ME}, not_before={"x": 130.0}, now=130.0)).take == ["x"]


def test_r10_the_later_of_patience_and_backoff_counts() -> None:
    late = decide(situation("x", {"x": OTHER}, not_before={"x": 101.0}))
    assert (late.take, late.wake_at) == ([], 102.0)
    later = decide(situation("x", {"x": OTHER}, not_before={"x": 103.0}, now=102.5))
    assert (later.take, later.wake_at) == ([], 103.0)


def test_r11_what_may_not_be_claimed_is_neither_taken_nor_given_but_released() -> None:
    plan = decide(situation("x", {"x": ME}, mine={"gone": 0, "x": 0}, held={"gone", "x"}))
    assert plan.release == ["gone"]
    assert plan.take == []
    assert plan.give == {}


# -- giving ------------------------------------------------------------------------------------
def test_r9_only_the_surplus_is_given_and_only_to_whose_it_shall_be() -> None:
    names = [f"i{number:02}" for number in range(10)]
    shall = {name: OTHER if number < 5 else ME for number, name in enumerate(names)}
    mine = dict.fromkeys(names[1:], 0)
    plan = decide(situation(names, dict.fromkeys(names, ME), targets=shall, mine=mine, held=set(names)))
    assert plan.give == {OTHER: names[1:5]}


def test_r9_what_is_too_much_for_a_moment_is_not_given() -> None:
    names = [f"i{number}" for number in range(10)]
    fields: dict[str, Any] = {"mine": dict.fromkeys(names, 0), "held": set(names)}
    first = decide(situation(names, dict.fromkeys(names, OTHER), above_since=None, **fields))
    assert (first.give, first.above, first.wake_at) == ({}, True, 102.0)
    soon = decide(situation(names, dict.fromkeys(names, OTHER), above_since=98.5, **fields))
    assert (soon.give, soon.wake_at) == ({}, 100.5)
    assert decide(situation(names, dict.fromkeys(names, OTHER), above_since=98.0, **fields)).give


def test_r9_a_little_above_the_share_moves_nothing_but_what_is_begun_is_ended() -> None:
    names = [f"i{number:03}" for number in range(10 * SLACK)]
    shall = {name: OTHER if number < 5 else ME for number, name in enumerate(names)}
    fields: dict[str, Any] = {"mine": dict.fromkeys(names, 0), "held": set(names)}
    assert not decide(situation(names, shall, above_since=None, **fields)).above
    assert decide(situation(names, shall, above_since=90.0, **fields)).give == {OTHER: names[:5]}


@pytest.mark.parametrize(
    ("case", "receiver"),
    [
        ("not settled", peer(OTHER, settled=False)),
        ("draining", peer(OTHER, draining=True)),
        ("gone", None),
    ],
)
def test_r9_nothing_is_given_to_whom_may_not_receive(case: str, receiver: Peer | None) -> None:
    names = [f"i{number}" for number in range(10)]
    peers = {ME: peer(ME)} | ({OTHER: receiver} if receiver else {})
    mine = dict.fromkeys(names, 0)
    plan = decide(situation(names, dict.fromkeys(names, OTHER), mine=mine, held=set(names), peers=peers))
    assert plan.give == {}, case


def test_r9_a_hand_over_is_a_bounded_batch() -> None:
    names = [f"i{number:03}" for number in range(200)]
    mine = dict.fromkeys(names, 0)
    plan = decide(situation(names, dict.fromkeys(names, OTHER), mine=mine, held=set(names)))
    assert {to: len(what) for to, what in plan.give.items()} == {OTHER: HAND_OVER_BATCH}


def test_r9_a_batch_to_one_receiver_keeps_no_other_waiting() -> None:
    names = [f"i{number:03}" for number in range(90)]
    prefer = {name: OTHER if number < 45 else "farm-c" for number, name in enumerate(names)}
    peers = {name: peer(name) for name in (ME, OTHER, "farm-c")}
    plan = decide(situation(names, prefer, mine=dict.fromkeys(names, 0), held=set(names), peers=peers))
    assert {to: len(what) for to, what in plan.give.items()} == {
        OTHER: HAND_OVER_BATCH,
        "farm-c": HAND_OVER_BATCH,
    }


def test_a_draining_farm_gives_everything_and_takes_nothing() -> None:
    names = [f"i{number}" for number in range(5)]
    free = [*names, "free"]
    plan = decide(
        situation(free, dict.fromkeys(free, ""), mine=dict.fromkeys(names, 0), held=set(names), draining=True)
    )
    assert sorted(plan.give[OTHER]) == names
    assert plan.take == []


def test_r11_a_draining_farm_gives_nothing_to_whom_may_not_work_on_it() -> None:
    items_of = {"plain": Item("plain", 1), "special": Item("special", 1, needs=("gpu",))}
    able = Peer("farm-c", "session-of-c", True, False, frozenset({"gpu"}))
    fields: dict[str, Any] = {
        "mine": dict.fromkeys(items_of, 0),
        "held": set(items_of),
        "draining": True,
        "claimable": items_of,
    }
    two = decide(situation((), {}, peers={ME: peer(ME), OTHER: peer(OTHER), "farm-c": able}, **fields))
    assert "special" in two.give["farm-c"]
    one = decide(situation((), {}, peers={ME: peer(ME), OTHER: peer(OTHER)}, **fields))
    assert one.give == {OTHER: ["plain"]}


# -- many farms, round after round ---------------------------------------------------------------
@dataclass
class Cluster:
    """Farms that plan from the true state, in any order; locks alone decide, as in Consul."""

    names: list[str]
    items: list[str]
    holder: dict[str, str] = field(default_factory=dict)
    moves: int = 0
    now: float = 100.0
    free_since: dict[str, float] = field(default_factory=dict)
    above_since: dict[str, float | None] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)

    def targets(self) -> dict[str, str]:
        wanted: dict[str, list[str]] = {name: [] for name in self.names}
        for item in self.items:
            wanted[preferred(item, self.names)].append(item)
        room = rooms({name: len(those) for name, those in wanted.items()}, dict.fromkeys(self.names, 0))
        return {item: preferred(item, self.names) for item in self.items} | Shares(wanted, room).moved()

    def situation(self, me: str, patience: float) -> Situation:
        return Situation(
            me=me,
            claimable=items(self.items),
            held=set(self.holder),
            mine={item: 0 for item, farm in self.holder.items() if farm == me},
            peers={name: peer(name, since=self.since.get(name, 0.0)) for name in self.names},
            preferred={item: preferred(item, self.names) for item in self.items},
            targets=self.targets(),
            free_since={item: self.free_since.setdefault(item, self.now) for item in self.items},
            not_before={},
            patience=patience,
            now=self.now,
            above_since=self.above_since.get(me),
        )

    def carry_out(self, me: str, plan: ClaimPlan) -> None:
        self.above_since[me] = (self.above_since.get(me) or self.now) if plan.above else None
        for item in plan.take:
            self.holder.setdefault(item, me)
        for receiver, batch in plan.give.items():
            for item in batch:
                assert self.holder[item] == me
                self.holder[item] = receiver
                self.moves += 1
        for item in plan.release:
            del self.holder[item]

    def rounds(self, order: Iterable[str]) -> None:
        """One round of every farm, all planned from what each saw before any of them acted."""
        plans = [(name, decide(self.situation(name, 2.0 + len(name) / 100))) for name in order]
        for name, plan in plans:
            self.carry_out(name, plan)
        self.now += 1.0

    def until_quiet(self, order: list[str], limit: int = 200) -> None:
        for _ in range(limit):
            before = (dict(self.holder), self.moves)
            self.rounds(order)
            waiting = any(since is not None for since in self.above_since.values())
            if (dict(self.holder), self.moves) == before and len(self.holder) == len(self.items):
                if not waiting:
                    return
        raise AssertionError(f"no rest after {limit} rounds, {self.moves} moves")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, list[str]]:
    names = [f"farm-{number}" for number in range(draw(st.integers(1, 5)))]
    whole = [f"{number:04x}" for number in range(draw(st.integers(0, 120)))]
    start = draw(st.sampled_from(["empty", "one holds all", "a dead farm's share is free"]))
    cluster = Cluster(names, whole)
    if start == "one holds all":
        cluster.holder = dict.fromkeys(whole, names[0])
    elif start == "a dead farm's share is free":
        former = [*names, "farm-dead"]
        cluster.holder = {i: preferred(i, former) for i in whole if preferred(i, former) != "farm-dead"}
    return cluster, draw(st.permutations(names))


@settings(max_examples=tries(60))
@given(clusters())
def test_r9_farms_come_to_rest_with_every_item_held_once_and_shared_fairly(
    drawn: tuple[Cluster, list[str]],
) -> None:
    cluster, order = drawn
    cluster.until_quiet(order)
    assert set(cluster.holder) == set(cluster.items)
    assert cluster.moves <= len(cluster.items), "an item moved more than once"
    moves = cluster.moves
    for _ in range(5):
        cluster.rounds(order)
    assert cluster.moves == moves, "an item moved after balance"
    assert evenly(cluster)


def evenly(cluster: Cluster) -> bool:
    """Whether no farm has more than its share and what it shrugs at."""
    held = [list(cluster.holder.values()).count(name) for name in cluster.names]
    share = ceil(len(cluster.items) / len(cluster.names))
    return max(held) <= share + share // SLACK


@settings(max_examples=tries(40))
@given(clusters(), st.booleans())
def test_r9_a_farm_that_joins_or_leaves_moves_little_more_than_it_must(
    drawn: tuple[Cluster, list[str]], joins: bool
) -> None:
    cluster, order = drawn
    cluster.until_quiet(order)
    before, cluster.moves = dict(cluster.holder), 0
    count = [list(before.values()).count(name) for name in cluster.names]
    if joins:
        cluster.names = [*cluster.names, "farm-new"]
        cluster.since["farm-new"] = cluster.now
        cluster.until_quiet([*order, "farm-new"])
        share = len(cluster.items) // len(cluster.names)
        must = sum(max(0, held - share) for held in count)
        assert cluster.moves <= must + 2 + len(cluster.items) // 5, "little more than what was too much moves"
    elif len(cluster.names) > 1:
        gone = order[0]
        cluster.names = [name for name in cluster.names if name != gone]
        cluster.holder = {item: farm for item, farm in cluster.holder.items() if farm != gone}
        cluster.free_since.clear()
        cluster.until_quiet([name for name in order if name != gone])
        freed = sum(farm == gone for farm in before.values())
        assert cluster.moves <= freed + len(cluster.names), (
            "the share of whoever left moves once more at most"
        )
    assert set(cluster.holder) == set(cluster.items)
    assert evenly(cluster)
