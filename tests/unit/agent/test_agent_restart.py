"""R28: an agent restarts a process once for each rise of the counter in its intent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farmd.agent import plan
from farmd.agent.model import Record
from farmd.agent.pod import Pod
from store.reality import Exit
from tests.effort import tries
from tests.unit.agent.test_agent_obey import OLD, Bench, sha, wanted


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    with made.state.locked("n1"):
        yield made


def obeyed(bench: Bench, index: int, restart: int, owner: str = "rc1") -> Pod:
    bench.obey(dataclasses.replace(wanted(index, OLD, restart=restart), owner=owner))
    pod = bench.pods.get("web")
    assert pod is not None
    return pod


def start(pod: Pod) -> None:
    """What a start notes down."""
    record = pod.record
    pod.change(running=record.manifest, acted=record.intent, restarted=record.restart, start="s", started=1.0)


def due(pod: Pod) -> bool:
    """Whether the agent stops the live process for a restart."""
    situation = pod.situation(isolated=0.0, halting=False)
    situation = dataclasses.replace(situation, running=sha(OLD), prepared=True)
    return isinstance(plan.decide(situation, 0.0), plan.Stop)


def test_a_new_pod_starts_with_its_owners_counter_and_is_not_restarted(bench: Bench) -> None:
    pod = obeyed(bench, 7, 3)
    start(pod)
    assert not due(pod)
    assert obeyed(bench, 8, 3).record.acted == 8
    assert not due(pod)


def test_a_rise_is_due_until_a_start_and_the_intent_is_not_acted_on_before(bench: Bench) -> None:
    pod = obeyed(bench, 7, 0)
    start(pod)
    obeyed(bench, 8, 1)
    assert due(pod)
    assert (pod.record.acted, pod.report(0.0).restart) == (7, 0)
    obeyed(bench, 9, 1)
    assert (due(pod), pod.record.acted) == (True, 7)
    start(pod)
    assert (due(pod), pod.record.acted, pod.report(0.0).restart) == (False, 9, 1)


def test_a_rise_is_on_disk_before_anything_is_stopped(bench: Bench) -> None:
    pod = obeyed(bench, 7, 0)
    start(pod)
    obeyed(bench, 8, 1)
    saved = bench.state.load("web")
    assert saved is not None
    assert saved.superseded


def test_a_lower_counter_restarts_nothing_and_the_next_rise_counts_again(bench: Bench) -> None:
    pod = obeyed(bench, 7, 5)
    start(pod)
    obeyed(bench, 9, 2)
    assert (due(pod), pod.record.acted) == (False, 9)
    obeyed(bench, 10, 3)
    assert due(pod)


def test_the_counter_of_another_owner_is_no_rise(bench: Bench) -> None:
    pod = obeyed(bench, 7, 0)
    start(pod)
    obeyed(bench, 8, 4, owner="rc2")
    assert (due(pod), pod.record.acted) == (False, 8)


def test_a_record_of_an_older_agent_takes_the_counter_as_acted_on(bench: Bench) -> None:
    older = Record(instance="web", manifest=sha(OLD), owner="rc1", intent=7, acted=7, running=sha(OLD))
    pod = bench.pods.load(older)
    assert not pod.record.superseded
    obeyed(bench, 7, 4)
    assert not due(pod)
    obeyed(bench, 8, 5)
    assert due(pod)


def test_a_restart_ends_the_backoff(bench: Bench) -> None:
    pod = obeyed(bench, 7, 0)
    start(pod)
    for _ in range(5):
        pod.failed("no", now=bench.clock.now(), mono=bench.clock.mono())
    assert pod.not_before > bench.clock.mono()
    obeyed(bench, 8, 1)
    assert (pod.not_before, pod.record.failures, pod.record.failing_since) == (-math.inf, 0, 0.0)


def test_an_end_for_a_restart_is_no_failure_even_if_the_agent_that_asked_is_gone(bench: Bench) -> None:
    pod = obeyed(bench, 7, 0)
    start(pod)
    obeyed(bench, 8, 1)
    saved = bench.state.load("web")
    assert saved is not None
    again = bench._pods().load(saved)
    again.ended(Exit(50.0, -15), why="ended by SIGTERM", mono=50.0)
    assert (again.record.failures, again.record.failing_since, again.not_before) == (0, 0.0, 50.0)


@settings(max_examples=tries(50))
@given(
    steps=st.lists(
        st.one_of(st.integers(0, 4), st.sampled_from(["start", "agent restarts"])), min_size=1, max_size=25
    )
)
def test_every_rise_is_followed_by_exactly_one_start(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | str]
) -> None:
    """Counters go up and down, the agent is restarted, and starts come when they come."""
    bench = Bench(tmp_path_factory.mktemp("agent"))
    with bench.state.locked("n1"):
        pod, known, acted, owed = obeyed(bench, 1, 0), 0, 0, False
        start(pod)
        for index, step in enumerate(steps, start=2):
            if step == "agent restarts":
                record = msgspec.json.decode(msgspec.json.encode(pod.record), type=Record)
                bench.pods = bench._pods()
                pod = bench.pods.load(record)
                pod.target = OLD
            elif step == "start":
                if due(pod):
                    start(pod)
                    acted, owed = known, False
            else:
                assert isinstance(step, int)
                owed = step > known or (owed and step > acted)
                pod, known, acted = obeyed(bench, index, step), step, min(acted, step)
            assert due(pod) == owed
