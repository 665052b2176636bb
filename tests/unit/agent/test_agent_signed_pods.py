"""R32: what a pod may do between its admission and its first start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farmd.agent.intents import Intents
from farmd.agent.model import Policy, Record, SigningConfig, WantedPod
from farmd.agent.pod import Pod
from farmd.signing.trust import Allowed, Decision, Refused
from store import manifests
from store.entry import Page, RawEntry
from tests.unit.agent import test_agent_runtimes as agents
from tests.unit.agent.test_agent_obey import NEW, Bench, page, sha

WHY = "not signed: nobody signed it"
REFUSED = WantedPod("web", 7, sha(NEW), "rc1", None, WHY, unsigned=WHY)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    with made.state.locked("n1"):
        yield made


def admitted(bench: Bench, until: float) -> WantedPod:
    return WantedPod("web", 7, sha(NEW), "rc1", NEW, start_by=until)


def test_a_signature_that_is_withdrawn_before_the_first_start_withdraws_the_pod(bench: Bench) -> None:
    bench.obey(admitted(bench, 9e9))
    pod = bench.pods.get("web")
    assert pod is not None
    assert pod.target == NEW
    bench.obey(REFUSED)
    assert pod.target is None
    assert pod.problem == WHY
    bench.obey(admitted(bench, 9e9))
    assert (pod.target, pod.problem) == (NEW, "")


def test_a_signature_that_is_withdrawn_after_the_first_start_keeps_the_pod(bench: Bench) -> None:
    bench.obey(admitted(bench, 9e9))
    pod = bench.pods.get("web")
    assert pod is not None
    pod.change(running=sha(NEW))
    bench.obey(REFUSED)
    assert pod.target == NEW


@pytest.mark.parametrize(("running", "late"), [("", True), (sha(agents.NEW), False)])
async def test_the_end_is_looked_at_again_when_a_pod_that_waited_starts(
    tmp_path: Path, running: str, late: bool
) -> None:
    async with agents.Bench(tmp_path, {}) as bench:
        asked = WantedPod("web", 7, sha(agents.NEW), "rc1", agents.NEW, start_by=bench.clock.now())
        bench.agent.pods.obey({"web": asked})
        pod = bench.agent.pods.get("web")
        assert pod is not None
        pod.change(running=running)
        await bench.settle()
        assert ("ended before its first start" in bench.reality().reason) == late
        assert list(bench.toy.world) == ([] if late else ["web"])


@pytest.mark.parametrize(
    ("fields", "starts"),
    [({}, False), ({"start_by": 9e9}, True), ({"running": sha(NEW)}, True)],
)
def test_an_agent_that_begins_to_enforce_starts_nothing_of_its_disk_that_it_never_admitted(
    bench: Bench, fields: dict[str, Any], starts: bool
) -> None:
    bench.state.save_manifest(sha(NEW), manifests.canonical(NEW))
    pod = bench._pods(enforced=True).load(Record(instance="web", manifest=sha(NEW), **fields))
    assert (pod.target is not None) == starts
    assert bool(pod.problem) != starts


class Judge:
    """An admission that says what the test tells it to say."""

    def __init__(self, policy: Policy, decision: Decision) -> None:
        self.config, self.decision = SigningConfig(policy=policy, trust=""), decision
        self.revoked = False

    async def decide(self, *_: Any, **__: Any) -> Decision:
        return self.decision

    async def revokes(self, *_: Any) -> bool:
        return self.revoked


async def answered(bench: Bench, judge: Judge, *pages: Page[RawEntry]) -> tuple[Pod, Intents]:
    """The pod ``web`` after these answers of the store, and who obeyed the last one."""
    bench.state.save_manifest(sha(NEW), manifests.canonical(NEW))
    for each in pages:
        intents = bench.intents(each, lambda: None)
        intents.admission = judge  # type: ignore[assignment]
        intents.obeyed = True  # it told its ends before
        await intents._obey(each)
    pod = bench.pods.get("web")
    assert pod is not None
    return pod, intents


async def test_a_pod_that_takes_the_place_of_one_that_is_being_removed_stays_refused(bench: Bench) -> None:
    """However often the agent looks again, and also after its restart."""
    judge = Judge("enforce", Allowed("alice", 9e9))
    pod, _ = await answered(bench, judge, page(7, NEW))
    pod.change(running=sha(NEW))
    await answered(bench, judge, page(8, None))
    judge.decision = Refused("it is signed for rcs/web only")
    thief = page(9, NEW, owner="rc2")
    await answered(bench, judge, thief, thief)
    assert (pod.target, pod.problem) == (None, "not signed: it is signed for rcs/web only")
    pods = bench._pods(enforced=True)
    assert pods.load(pod.record).target is None


async def test_a_node_that_warns_goes_on_saying_so_until_somebody_signs(bench: Bench) -> None:
    judge = Judge("warn", Refused("nobody signed it"))
    pod, _ = await answered(bench, judge, page(7, NEW))
    pod.change(running=sha(NEW))
    await answered(bench, judge, page(7, NEW))
    assert (pod.target, pod.warning) == (NEW, WHY)
    judge.decision = Allowed("alice", 9e9)
    await answered(bench, judge, page(7, NEW))
    assert (pod.target, pod.warning) == (NEW, "")


@pytest.mark.parametrize(("running", "again"), [("", True), (sha(NEW), False)])
async def test_a_pod_that_waits_for_its_first_start_is_judged_again_from_time_to_time(
    bench: Bench, running: str, again: bool
) -> None:
    """A key that is withdrawn while an image is pulled must count before the pod starts."""
    judge = Judge("enforce", Allowed("alice", 9e9))
    (await answered(bench, judge, page(7, NEW)))[0].change(running=running)
    _, intents = await answered(bench, judge, page(7, NEW))
    assert intents._unusable == again
