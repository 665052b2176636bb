"""What a proven answer changes, record by record (R16, R20)."""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from farmd.agent.intents import Intents, proven
from farmd.agent.manifests import Manifests
from farmd.agent.model import AgentConfig, WantedPod
from farmd.agent.pods import Pods
from farmd.agent.state import AgentIdentity, StateDirectory
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from store import codec, manifests, registration
from store.consul.client import ConsulClient
from store.entry import Page, RawEntry
from store.errors import StoreUnavailable
from store.keys import Keys
from store.manifests import Manifest
from store.ports import Request, Response
from store.reality import Exit, Intent
from tests.still_clock import StillClock

OLD = Manifest(id="web", command=["old"])
NEW = Manifest(id="web", command=["new"])
CLUSTER = "c1"


def page(index: int, manifest: Manifest | None, owner: str = "rc1") -> Page[RawEntry]:
    """A proven answer with one intent, or with none."""
    keys = Keys()
    values = {
        keys.sentinel(keys.intents("n1")): registration.sentinel_value(CLUSTER),
    }
    if manifest is not None:
        values[keys.intent("n1", "web")] = codec.encode(Intent(sha(manifest), owner))
    raw = {key: msgspec.Raw(b'"%s"' % base64.b64encode(value)) for key, value in values.items()}
    return Page(index, [RawEntry(key, index, value=value) for key, value in raw.items()])


class NoStore:
    """A transport to nowhere."""

    async def send(self, request: Request, timeout: float) -> Response:
        raise StoreUnavailable("no store here")

    async def close(self) -> None:
        pass


def sha(manifest: Manifest) -> str:
    return manifests.digest(manifests.canonical(manifest))


def wanted(
    index: int, manifest: Manifest | None, problem: str = "", instance: str = "web", restart: int = 0
) -> WantedPod:
    return WantedPod(instance, index, sha(manifest) if manifest else "", "rc1", manifest, problem, restart)


class Bench:
    """Pods over a state directory, and no store."""

    def __init__(self, root: Path) -> None:
        self.clock = StillClock()
        self.state = StateDirectory(root)
        self.pods = self._pods()

    def _pods(self, *, enforced: bool = False) -> Pods:
        client = ConsulClient(NoStore(), clock=self.clock)
        return Pods(
            state=self.state,
            manifests=Manifests(client, Keys(), self.state),
            clock=self.clock,
            recorder=Metrics(CollectorRegistry()),
            enforced=enforced,
        )

    def intents(self, consistent: Page[RawEntry], doubt: Callable[[], None]) -> Intents:
        """Of a store whose consistent reads say this."""

        async def answer(prefix: str, *, mode: str) -> Page[RawEntry]:
            assert (prefix, mode) == (Keys().intents("n1"), "consistent")
            return consistent

        recorder = Metrics(CollectorRegistry())
        return Intents(
            AgentConfig(node="n1", state_dir=self.state.root),
            client=SimpleNamespace(list=answer),  # type: ignore[arg-type]
            keys=Keys(),
            link=SimpleNamespace(identity=AgentIdentity("n1", cluster=CLUSTER)),  # type: ignore[arg-type]
            manifests=Manifests(ConsulClient(NoStore(), clock=self.clock), Keys(), self.state),
            pods=self.pods,
            clock=self.clock,
            rng=random.Random(1),
            recorder=recorder,
            progress=Progress(self.clock, recorder),
            wake=lambda: None,
            doubt=doubt,
            preflight=lambda manifest, *, kept=False: None,
        )

    def obey(self, *intents: WantedPod) -> None:
        self.pods.obey({intent.instance: intent for intent in intents})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    with made.state.locked("n1"):
        yield made


def test_an_intent_becomes_a_record_on_disk(bench: Bench) -> None:
    bench.obey(wanted(7, OLD))
    pod = bench.pods.get("web")
    assert pod is not None
    assert (pod.record.manifest, pod.record.intent, pod.record.acted, pod.target) == (sha(OLD), 7, 0, OLD)
    assert bench.state.load("web") == pod.record


async def test_a_node_with_more_intents_than_it_may_have_keeps_its_pods_and_takes_no_more_than_fit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farmd.agent.intents.MOST_INTENTS", 3)
    bench.obey(wanted(7, OLD, instance="web~8"), wanted(7, OLD, instance="web~9"))
    keys, told = Keys(), list[None]()
    value = msgspec.Raw(b'"%s"' % base64.b64encode(codec.encode(Intent(sha(OLD), "rc1"))))
    many = page(9, None)
    many.items.extend(RawEntry(keys.intent("n1", f"web~{at}"), 9, value=value) for at in range(10))
    intents = bench.intents(many, lambda: told.append(None))

    async def manifest(_: str) -> Manifest:
        return OLD

    monkeypatch.setattr(intents.manifests, "get", manifest)
    found = await intents._resolve(many)
    assert found is not None
    assert sorted(found) == ["web~0", "web~8", "web~9"]
    assert intents.closed == "it has 10 intents, expected at most 3: farmctl doctor"
    few = page(10, OLD)
    assert list(await intents._resolve(few) or ()) == ["web"]
    assert (intents.closed, len(told)) == ("", 2)  # farms hear of both


async def test_an_intent_whose_name_is_longer_than_a_files_holds_up_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = page(9, OLD)
    (good,) = (raw for raw in both.items if raw.key == Keys().intent("n1", "web"))
    both.items.append(RawEntry(f"{good.key}~{'9' * 5000}", 9, value=good.value))
    intents = bench.intents(both, lambda: None)

    async def manifest(_: str) -> Manifest:
        return OLD

    monkeypatch.setattr(intents.manifests, "get", manifest)
    found = await intents._resolve(both)
    assert list(found or ()) == ["web"]


def test_r16_a_lower_modify_index_is_told_and_obeyed_only_when_it_is_proven(bench: Bench) -> None:
    bench.obey(wanted(9, NEW))
    older = {"web": wanted(7, OLD)}
    assert bench.pods.older_than_known(older) == ["web"]
    assert bench.pods.older_than_known({"web": wanted(9, NEW)}) == []
    bench.pods.obey(older)
    pod = bench.pods.get("web")
    assert pod is not None
    assert (pod.record.manifest, pod.record.intent, pod.target) == (sha(OLD), 7, OLD)


def test_r16_the_same_index_of_a_restored_store_may_mean_another_manifest(bench: Bench) -> None:
    bench.obey(wanted(9, NEW))
    bench.obey(wanted(9, OLD))
    pod = bench.pods.get("web")
    assert pod is not None
    assert (pod.record.manifest, pod.target) == (sha(OLD), OLD)


def test_r20_what_cannot_be_used_changes_nothing_but_the_reason(bench: Bench) -> None:
    bench.obey(wanted(7, OLD))
    before = bench.pods.get("web")
    assert before is not None
    record = before.record
    bench.obey(wanted(9, None, "malformed"))
    pod = bench.pods.get("web")
    assert pod is not None
    assert (pod.record, pod.target, pod.problem, pod.refused) == (record, OLD, "malformed", 9)
    assert bench.state.load("web") == record
    bench.obey(wanted(10, OLD))
    assert (pod.problem, pod.record.intent) == ("", 10)


def test_r20_absence_in_a_proven_answer_is_written_down_first(bench: Bench) -> None:
    bench.obey(wanted(7, OLD))
    assert bench.pods.missing_from(["other"]) == ["web"]
    bench.obey()
    saved = bench.state.load("web")
    assert saved is not None
    assert not saved.wanted


def test_r20_a_broken_record_after_a_removal_does_not_bring_the_old_pod_back(bench: Bench) -> None:
    bench.obey(wanted(7, OLD))
    bench.obey()
    bench.obey(wanted(9, None, "malformed"))
    pod = bench.pods.get("web")
    assert pod is not None
    assert pod.target is None


def test_another_manifest_gets_a_first_try_at_once(bench: Bench) -> None:
    bench.obey(wanted(7, OLD))
    pod = bench.pods.get("web")
    assert pod is not None
    for _ in range(5):
        pod.failed("no", now=bench.clock.now(), mono=bench.clock.mono())
    assert pod.not_before > bench.clock.mono()
    bench.obey(wanted(8, NEW))
    assert (pod.not_before, pod.record.failures, pod.record.reason) == (-math.inf, 0, "")


def test_w17_a_pod_that_is_down_says_since_when_it_does_not_stay_up(bench: Bench) -> None:
    bench.obey(wanted(7, OLD))
    pod = bench.pods.get("web")
    assert pod is not None

    def end(started: float, at: float, *, asked: bool = False) -> float:
        pod.change(running=sha(OLD), started=started)
        pod.stopping = 1.0 if asked else None
        pod.ended(Exit(at, 1), why="exited", mono=at)
        return pod.report(at).health.since

    assert end(started=100.0, at=5000.0) == 5000.0
    assert end(started=5001.0, at=5002.0) == 5000.0
    pod.failed("no such file", now=5010.0, mono=5010.0)
    assert pod.report(5010.0).health.since == 5000.0
    assert end(started=5011.0, at=6000.0) == 6000.0
    assert end(started=6001.0, at=7000.0, asked=True) == 0.0


def test_backoff_goes_on_across_a_restart_of_the_agent_but_never_longer_than_its_maximum(
    bench: Bench,
) -> None:
    bench.obey(wanted(7, OLD))
    pod = bench.pods.get("web")
    assert pod is not None
    (bench.state.manifests / sha(OLD)).write_bytes(manifests.canonical(OLD))
    record = msgspec.structs.replace(pod.record, not_before=bench.clock.now() + 20)
    again = bench._pods().load(record)
    assert (again.target, again.not_before) == (OLD, bench.clock.mono() + 20)
    set_back = msgspec.structs.replace(record, not_before=bench.clock.now() + 1e9)
    assert bench._pods().load(set_back).not_before == bench.clock.mono() + OLD.restart.maximum


def test_manifests_that_nobody_needs_are_dropped_from_disk(bench: Bench) -> None:
    for manifest in (OLD, NEW):
        (bench.state.manifests / sha(manifest)).write_bytes(manifests.canonical(manifest))
    bench.obey(wanted(7, NEW))
    assert [path.name for path in bench.state.manifests.iterdir()] == [sha(NEW)]


SENTINEL = Keys().sentinel(Keys().intents("n1"))
OTHER = RawEntry(Keys().intent("n1", "web"), 5, value=msgspec.Raw(b'"e30="'))


def answer(*values: bytes) -> Page[RawEntry]:
    sentinels = [RawEntry(SENTINEL, 3, value=msgspec.Raw(msgspec.json.encode(value))) for value in values]
    return Page(9, [*sentinels, OTHER])


@pytest.mark.parametrize(
    ("page", "cluster", "expected"),
    [
        (answer(b'"c1"'), "c1", True),
        (answer(b'"c2"'), "c1", False),
        (answer(b""), "c1", False),
        (answer(b"<html>"), "c1", False),
        (answer(b'{"id":"c1"}'), "c1", False),
        (answer(b'""'), "", False),
        (answer(), "c1", False),
        (Page[RawEntry](9, []), "c1", False),
    ],
)
def test_r20_only_the_sentinel_of_our_cluster_proves_an_answer(
    page: Page[RawEntry], cluster: str, expected: bool
) -> None:
    assert proven(page, SENTINEL, cluster) is expected


@pytest.mark.parametrize(("consistent", "obeyed"), [(9, NEW), (7, OLD)], ids=["a stale read", "a restore"])
async def test_r16_a_lower_index_is_obeyed_only_if_a_consistent_read_says_the_same(
    bench: Bench, consistent: int, obeyed: Manifest
) -> None:
    doubts: list[None] = []
    intents = bench.intents({9: page(9, NEW), 7: page(7, OLD)}[consistent], lambda: doubts.append(None))
    bench.obey(wanted(9, NEW))
    for manifest in (OLD, NEW):
        (bench.state.manifests / sha(manifest)).write_bytes(manifests.canonical(manifest))
    await intents._obey(page(7, OLD))
    pod = bench.pods.get("web")
    assert pod is not None
    assert (pod.record.intent, pod.target) == (consistent, obeyed)
    assert len(doubts) == (consistent == 7)


async def test_r20_an_answer_that_comes_during_a_second_look_is_obeyed_next(bench: Bench) -> None:
    """A removal that follows another one at once must not be lost to the older second look."""
    bench.state.save_manifest(sha(OLD), manifests.canonical(OLD))
    bench.obey(wanted(7, OLD), wanted(7, OLD, instance="gone"))
    intents = bench.intents(page(8, OLD), lambda: None)
    second_look = intents.client.list
    newer = page(9, None)

    async def followed(prefix: str, *, mode: str) -> Page[RawEntry]:
        found = await second_look(prefix, mode=mode)
        intents._page = newer  # what the loop beside does with an answer
        return found

    intents.client = SimpleNamespace(list=followed)  # type: ignore[assignment]
    given = intents._page = page(8, OLD)
    await intents._obey(given)
    assert intents._page is newer
