"""The engine of a kind: names, slices, expectations, handlers and gangs, as Kubeflow's tests have them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from farmd.jobs.facts import Slot
from farmd.kubernetes.jobs import names
from farmd.kubernetes.jobs.controller import (
    ControllerExpectations,
    gen_expectation_pods_key,
    gen_expectation_services_key,
)
from farmd.kubernetes.jobs.names import gen_general_name, gen_labels, gen_owner_reference, job_key, too_long
from farmd.kubernetes.jobs.protocols import ApiFailed
from farmd.kubernetes.objects import KubeService, Tombstone
from tests.unit.jobs.kubernetes import Recorder, TestKind, controller, job, meta, owner, pod
from tests.virtual import VirtualClock

PODS, SERVICES = "default/bert/worker/pods", "default/bert/worker/services"
OURS = (owner(),)


@pytest.mark.parametrize(
    ("name", "kind", "index", "expected"),
    [
        ("hello-world", "Worker", "1", "hello-world-worker-1"),
        ("1/2/3/4/5", "worker", "1", "1-2-3-4-5-worker-1"),
        ("1/2/3/4/5", "WORKER", "1", "1-2-3-4-5-worker-1"),
        ("bert", "PS", "0", "bert-ps-0"),
    ],
)
def test_names_come_from_the_slot(name: str, kind: str, index: str, expected: str) -> None:
    assert gen_general_name(name, kind, index) == expected


def test_labels_and_owner_name_the_job() -> None:
    kind = TestKind("Test Reconciler")

    assert gen_labels(kind, "test/job1") == {"job-name": "test-job1", "operator-name": "Test Reconciler"}
    reference = gen_owner_reference(kind, job())
    assert (reference.api_version, reference.kind, reference.uid) == ("kubeflow.org/v1", "TestJob", "123")
    assert reference.controller
    assert reference.block_owner_deletion


def test_names_that_are_too_long_are_told() -> None:
    assert too_long("bert", {"worker": 8}) == ""
    told = too_long("b" * 60, {"worker": 8})
    assert told == "metadata.name: found 60 characters, expected at most 54 beside type 'worker'"


def test_expectations_have_a_key_for_each_type_and_resource() -> None:
    assert gen_expectation_pods_key("tf-operator/tfjob-abc", "PS") == "tf-operator/tfjob-abc/ps/pods"
    assert gen_expectation_services_key("ns/j", "Worker") == "ns/j/worker/services"
    assert job_key(job()) == "default/bert"


async def test_expectations_are_met_by_as_many_events() -> None:
    clock = VirtualClock()
    expected = ControllerExpectations(clock, expire=30.0)
    expected.set("key", 10, 30)

    for _ in range(11):
        expected.creation_observed("key")
    assert not expected.satisfied("key")
    for _ in range(31):
        expected.deletion_observed("key")
    known = expected.get("key")
    assert known is not None
    assert (known.add, known.delete) == (-1, -1)
    assert expected.satisfied("key")

    expected.set("key", 1, 2)
    assert not expected.satisfied("key")
    await clock.advance(30.0)
    assert not expected.satisfied("key")
    await clock.advance(1e-6)
    assert expected.satisfied("key")


async def test_an_event_that_was_lost_delays_no_write_after_its_time() -> None:
    clock = VirtualClock()
    expected = ControllerExpectations(clock, expire=30.0)
    expected.raise_by("key", 1, 1)
    await clock.advance(31.0)
    expected.raise_by("key", 1, 0)
    expected.creation_observed("key")
    assert expected.satisfied("key")


def test_an_end_that_nobody_expected_hides_no_end_that_somebody_does() -> None:
    expected = ControllerExpectations(VirtualClock())
    expected.raise_by("key", 1, 0)
    expected.deletion_observed("key")
    expected.raise_by("key", 0, 1)
    expected.creation_observed("key")
    assert not expected.satisfied("key")


def test_expecting_one_thing_forgets_the_other_and_raising_adds() -> None:
    expected = ControllerExpectations(VirtualClock())
    expected.set("key", 2, 0)
    expected.set("key", 0, 1)
    assert expected.get("key") is not None
    assert (expected.get("key").add, expected.get("key").delete) == (0, 1)  # type: ignore[union-attr]
    expected.raise_by("key", 2, 0)
    expected.lower("other", 1, 0)
    assert expected.get("key").add == 2  # type: ignore[union-attr]
    assert expected.get("other") is None
    expected.forget_job("ke")
    assert not expected.satisfied("key")


@pytest.mark.parametrize(
    ("replicas", "present", "expected"),
    [
        (3, ["0", "1", "2"], [1, 1, 1]),
        (4, ["0", "1", "2"], [1, 1, 1, 0]),
        (2, ["0", "1", "2"], [1, 1, 1]),
        (3, ["0", "1", "2", "4"], [1, 1, 1, 0, 1]),
        (2, ["0", "0", "1"], [2, 1]),
        (0, [], []),  # Kubeflow has one slice there, and creates a pod for it
        (2, ["x", ""], [0, 0]),
        (2, ["-1"], [0, 0]),  # Kubeflow crashes
        (1, ["999999999999", "٣"], [0]),
    ],
)
def test_slices_are_as_many_as_replicas_and_indexes_beyond(
    replicas: int, present: list[str], expected: list[int]
) -> None:
    kind = TestKind()
    pods = [pod(f"p{number}", index=index) for number, index in enumerate(present)]
    services = [KubeService(each.metadata) for each in pods]
    engine = controller(kind, Recorder())

    assert [len(each) for each in engine.get_pod_slices(pods, replicas)] == expected
    assert [len(each) for each in engine.get_service_slices(services, replicas)] == expected


@pytest.mark.parametrize(("text", "expected"), [("2", 2), ("3", 3), ("", None), ("4", 4), ("-1", -1)])
def test_the_index_of_an_object_is_its_label(text: str, expected: int | None) -> None:
    assert names.index_of(TestKind(), pod("p", index=text)) == expected


def test_objects_of_one_type_keep_their_order() -> None:
    pods = [pod(name, kind) for name, kind in zip("abcde", ("foo", "bar", "foo", "bar", "foo"), strict=True)]
    engine = controller(TestKind(), Recorder())

    assert [each.metadata.name for each in engine.filter_pods_for_replica_type(pods, "Foo")] == [
        "a",
        "c",
        "e",
    ]
    services = [KubeService(each.metadata) for each in pods]
    assert len(engine.filter_services_for_replica_type(services, "foo")) == 3


async def queued(engine: Any) -> list[str]:
    return [await engine.work_queue.get() for _ in range(len(engine.work_queue))]


def engine_with_expectations(uid: str = "123") -> Any:
    engine = controller(TestKind().knows(job(uid=uid)), Recorder())
    engine.expectations.set(PODS, 2, 2)
    engine.expectations.set(SERVICES, 2, 2)
    return engine


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"owner_references": OURS}, True),
        ({"owner_references": OURS, "deletion_timestamp": "2026-01-01T00:00:00Z"}, False),  # D1
        ({}, False),  # orphans wake nobody
        ({"owner_references": (owner("other"),)}, False),
        ({"owner_references": (owner(kind="TFJob"),)}, False),
        ({"owner_references": (owner(api_version="batch/v1"),)}, False),
        ({"owner_references": (owner(name="gone"),)}, False),
    ],
)
async def test_a_pod_that_appears_meets_an_expectation_of_its_job(fields: Any, seen: bool) -> None:
    engine = engine_with_expectations()

    engine.add_pod(pod("p", **fields))

    assert engine.expectations.get(PODS).add == (1 if seen else 2)
    assert await queued(engine) == (["default/bert"] if seen else [])


async def test_a_pod_that_vanishes_meets_an_expectation_also_as_a_tombstone() -> None:
    engine = engine_with_expectations()
    gone = pod("p", owner_references=OURS)

    engine.delete_pod(gone)
    engine.delete_pod(Tombstone("default/p", gone))  # D5
    assert engine.expectations.get(PODS).delete == 0
    engine.delete_pod(Tombstone("default/p", None))
    engine.delete_pod(pod("orphan"))  # D6
    engine.delete_pod(pod("other", owner_references=(owner("9"),)))

    assert engine.expectations.get(PODS).delete == 0
    assert await queued(engine) == ["default/bert"]


async def test_a_changed_pod_wakes_its_job_and_the_one_that_lost_it() -> None:
    engine = controller(TestKind().knows(job(), job("gpt", "9")), Recorder())
    old = pod("p", owner_references=OURS)

    engine.update_pod(old, old)  # D2
    assert await queued(engine) == []
    engine.update_pod(old, pod("p", resource_version="2"))  # D4
    assert await queued(engine) == ["default/bert"]
    engine.work_queue.done("default/bert")
    engine.update_pod(old, pod("p", resource_version="2", owner_references=(owner("9", name="gpt"),)))
    assert await queued(engine) == ["default/bert", "default/gpt"]


async def test_services_are_handled_like_pods() -> None:
    engine = engine_with_expectations()
    service = KubeService(meta("s", {"replica-type": "worker"}, owner_references=OURS))

    engine.add_service(service)
    engine.delete_service(service)
    engine.update_service(service, KubeService(meta("s", resource_version="2", owner_references=OURS)))

    known = engine.expectations.get(SERVICES)
    assert (known.add, known.delete) == (1, 1)
    assert await queued(engine) == ["default/bert"]


async def test_the_service_that_members_share_is_expected_until_it_is_seen_and_missed_when_it_goes() -> None:
    engine = controller(TestKind().knows(job()), Recorder())
    shared = KubeService(meta("bert", owner_references=OURS))

    await engine.create_service(job(), "", {"metadata": {"name": "bert"}})
    assert not engine.satisfied(job(), ["Worker"])
    engine.add_service(shared)
    assert engine.satisfied(job(), ["Worker"])
    assert await queued(engine) == ["default/bert"]

    engine.work_queue.done("default/bert")
    engine.delete_service(shared)
    assert await queued(engine) == ["default/bert"]


BODY = {"metadata": {"name": "bert-worker-0"}}
SLOT = Slot("Worker", 0)


async def test_a_creation_is_expected_until_it_is_seen() -> None:
    api = Recorder()
    engine = controller(TestKind().knows(job()), api)

    made = await engine.create_pod(job(), SLOT, BODY)

    assert made.metadata.name == "bert-worker-0"
    assert not engine.satisfied(job(), ["Worker"])
    engine.add_pod(pod("bert-worker-0", owner_references=OURS))
    assert engine.satisfied(job(), ["Worker"])


@pytest.mark.parametrize(
    ("failure", "satisfied"),
    [
        (ApiFailed("exists", status=409, reason="AlreadyExists"), True),  # D10
        (ApiFailed("quota", status=403), True),
        (ApiFailed("timeout", unknown=True), False),  # D11
    ],
)
async def test_a_refused_creation_is_expected_no_more_and_an_unanswered_one_still_is(
    failure: ApiFailed, satisfied: bool
) -> None:
    api = Recorder()
    api.failure = failure
    engine = controller(TestKind(), api)

    with pytest.raises(ApiFailed):
        await engine.create_pod(job(), SLOT, BODY)
    with pytest.raises(ApiFailed):
        await engine.create_service(job(), "Worker", BODY)

    assert engine.satisfied(job(), ["Worker"]) is satisfied
    assert api.events == [("Warning", "FailedCreatePod"), ("Warning", "FailedCreateService")]


async def test_a_creation_that_is_cancelled_may_exist() -> None:
    class Slow(Recorder):
        async def create_pod(self, namespace: str, body: Any) -> Any:
            await asyncio.Event().wait()

    engine = controller(TestKind(), Slow())
    task = asyncio.create_task(engine.create_pod(job(), SLOT, BODY))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert not engine.satisfied(job(), ["Worker"])


async def test_a_pod_that_leaves_already_is_neither_deleted_nor_expected_to_be() -> None:
    api = Recorder()
    engine = controller(TestKind(), api)

    await engine.remove_pod(job(), SLOT, pod("p", deletion_timestamp="2026-01-01T00:00:00Z"))  # D28
    assert api.deleted == []
    assert engine.satisfied(job(), ["Worker"])
    await engine.remove_pod(job(), SLOT, pod("p"))

    assert api.deleted == [("p", "uid-p", "1")]
    assert not engine.satisfied(job(), ["Worker"])


async def test_a_job_that_is_gone_leaves_no_expectation() -> None:
    engine = controller(TestKind(), Recorder())
    await engine.create_pod(job(), SLOT, BODY)

    engine.forget(job())

    assert engine.expectations.get(PODS) is None


async def test_a_budget_is_created_once_and_the_second_call_returns_it() -> None:
    api = Recorder()
    engine = controller(TestKind(), api)

    first = await engine.sync_pdb(job(), 3)
    second = await engine.sync_pdb(job(), 3)  # D23

    assert first == second
    ((_, body),) = api.created
    assert body["spec"] == {"minAvailable": 3, "selector": {"matchLabels": {"job-name": "bert"}}}
    assert body["metadata"]["ownerReferences"][0]["uid"] == "123"
    await engine.delete_pdb(job())
    await engine.delete_pdb(job())
    assert api.deleted == [("bert", "", "")]


async def test_without_gangs_there_is_no_budget() -> None:
    api = Recorder()

    assert await controller(TestKind(), api, gangs=False).sync_pdb(job(), 3) is None
    assert api.created == []


async def test_a_budget_that_cannot_be_read_is_not_created() -> None:
    api = Recorder()
    api.failure = ApiFailed("forbidden", status=403)

    with pytest.raises(ApiFailed):
        await controller(TestKind(), api).sync_pdb(job(), 3)
    assert api.created == []
