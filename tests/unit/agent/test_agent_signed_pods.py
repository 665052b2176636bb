"""R32: what a pod may do between its admission and its first start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from farmd.agent.errors import StartFailed
from farmd.agent.lifecycle import Lifecycle
from farmd.agent.manifests import Manifests
from farmd.agent.model import Record, Wanted
from farmd.agent.pods import Pods
from farmd.observe.recorder import Metrics
from store import manifests
from store.consul.client import ConsulClient
from store.keys import Keys
from tests.unit.agent.test_agent_obey import NEW, Bench, NoStore, sha

WHY = "not signed: nobody signed it"
REFUSED = Wanted("web", 7, sha(NEW), "rc1", None, WHY, unsigned=WHY)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    with made.state.locked("n1"):
        yield made


def admitted(bench: Bench, until: float) -> Wanted:
    return Wanted("web", 7, sha(NEW), "rc1", NEW, start_by=until)


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


@pytest.mark.parametrize(("running", "late"), [("", True), (sha(NEW), False)])
async def test_the_end_is_looked_at_again_when_a_pod_that_waited_starts(
    bench: Bench, running: str, late: bool
) -> None:
    unused: Any = None
    lifecycle = Lifecycle(
        pods=bench.pods,
        state=bench.state,
        gone=unused,
        runtimes=unused,
        ports=unused,
        health=unused,
        clock=bench.clock,
        ids=unused,
        recorder=unused,
        wake=lambda: None,
    )
    bench.obey(admitted(bench, bench.clock.now()))
    pod = bench.pods.get("web")
    assert pod is not None
    pod.change(running=running)
    # Without a runtime a start that is allowed comes no further than this.
    with pytest.raises(StartFailed if late else AttributeError, match="ended before" if late else "of"):
        await lifecycle.start(pod)


@pytest.mark.parametrize(
    ("fields", "starts"),
    [({}, False), ({"start_by": 9e9}, True), ({"running": sha(NEW)}, True)],
)
def test_an_agent_that_begins_to_enforce_starts_nothing_of_its_disk_that_it_never_admitted(
    bench: Bench, fields: dict[str, Any], starts: bool
) -> None:
    bench.state.save_manifest(sha(NEW), manifests.canonical(NEW))
    client = ConsulClient(NoStore(), clock=bench.clock)
    pods = Pods(
        state=bench.state,
        manifests=Manifests(client, Keys(), bench.state),
        clock=bench.clock,
        recorder=Metrics(CollectorRegistry()),
        enforced=True,
    )
    pod = pods.load(Record(instance="web", manifest=sha(NEW), **fields))
    assert (pod.target is not None) == starts
    assert bool(pod.problem) != starts
