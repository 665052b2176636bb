"""Which objects a job claims (Kubeflow's table), and that its verdict on itself is fresh."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.kubernetes.jobs.adoption import CannotAdopt, ClaimFailed, outcome, recheck_deletion_timestamp
from farmd.kubernetes.jobs.protocols import ApiFailed
from farmd.kubernetes.objects import KubePod, KubeService
from tests.unit.jobs.kubernetes import Recorder, TestKind, controller, job, meta, owner, pod

LABELS = {"operator-name": "test-operator", "job-name": "bert"}
OTHER = {"operator-name": "testing"}
OURS, THEIRS = (owner(),), (owner("AAAAA"),)
LEAVING = {"deletion_timestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("owners", "labels", "job_leaves", "object_leaves", "expected"),
    [
        (THEIRS, {}, False, False, "ignore"),
        (OURS, {}, False, False, "ours"),
        (OURS, {}, True, False, "ours"),
        (OURS, {}, False, True, "ours"),
        (OURS, OTHER, True, False, "ignore"),
        (OURS, OTHER, False, False, "release"),
        ((), OTHER, False, False, "ignore"),
        ((), {}, True, False, "ignore"),
        ((), {}, False, True, "ignore"),
        ((), {}, False, False, "adopt"),
        ((owner(controller=False),), {}, False, False, "adopt"),
    ],
)
def test_who_owns_an_object_decides_before_what_matches_it(
    owners: Any, labels: dict[str, str], job_leaves: bool, object_leaves: bool, expected: str
) -> None:
    one = pod("p1", labels=labels, owner_references=owners, **(LEAVING if object_leaves else {}))
    of = job(**(LEAVING if job_leaves else {}))

    assert outcome(of, one, LABELS) == expected


async def claimed(api: Recorder, of: Any, *pods: Any, kind: TestKind | None = None) -> list[str]:
    api.objects = list(pods)
    engine = controller(kind or TestKind().knows(of), api)
    found = await engine.get_pods_for_job(of)
    return sorted(each.metadata.name for each in found)


async def test_orphans_that_match_are_adopted_by_a_patch_that_names_their_uid() -> None:
    api = Recorder()

    assert await claimed(api, job(), pod("p1", owner_references=OURS), pod("p2")) == ["p1", "p2"]

    assert api.patched == {
        "p2": {
            "metadata": {
                "uid": "uid-p2",
                "ownerReferences": [
                    {
                        "apiVersion": "kubeflow.org/v1",
                        "kind": "TestJob",
                        "name": "bert",
                        "uid": "123",
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            }
        }
    }


async def test_an_object_that_matches_no_more_is_released() -> None:
    api = Recorder()

    found = await claimed(
        api, job(), pod("p1", owner_references=OURS), pod("p2", labels=OTHER, owner_references=OURS)
    )

    assert found == ["p1"]
    gone = {"$patch": "delete", "uid": "123"}
    assert api.patched == {"p2": {"metadata": {"uid": "uid-p2", "ownerReferences": [gone]}}}


@pytest.mark.parametrize("status", [404, 422])
async def test_a_release_of_what_is_gone_is_done(status: int) -> None:
    api = Recorder()
    api.failure = ApiFailed("gone", status=status)

    assert await claimed(api, job(), pod("p2", labels=OTHER, owner_references=OURS)) == []


async def test_a_failure_stops_no_other_claim_and_names_its_object() -> None:
    api = Recorder()
    api.failure = ApiFailed("quota", status=403)

    with pytest.raises(ClaimFailed, match=r"pod default/p1 \(uid-p1\).*; .*pod default/p2") as raised:
        await claimed(api, job(), pod("p1"), pod("p2"), pod("p3", owner_references=OURS))

    assert len(raised.value.failures) == 2


async def test_a_job_that_is_deleted_meanwhile_adopts_nothing_and_is_read_once() -> None:
    api, kind = Recorder(), TestKind()
    kind.served["default", "bert"] = job(**LEAVING)

    with pytest.raises(ClaimFailed, match="the job is being deleted"):
        await claimed(api, job(), pod("p1"), pod("p2"), kind=kind)

    assert api.patched == {}
    assert kind.reads == 1


async def test_another_job_of_the_same_name_adopts_nothing() -> None:
    api, kind = Recorder(), TestKind().knows(job(uid="456"))

    with pytest.raises(ClaimFailed, match="another one has its name"):
        await claimed(api, job(), pod("p1"), kind=kind)


async def test_the_verdict_on_a_job_that_cannot_be_read_forbids_adoption() -> None:
    async def unreadable() -> None:
        raise ApiFailed("no route")

    check = recheck_deletion_timestamp(unreadable, "123")

    with pytest.raises(CannotAdopt, match="cannot read the job again: no route"):
        await check()


async def test_services_are_claimed_like_pods() -> None:
    api, of = Recorder(), job()
    api.objects = [
        KubeService(meta("s1")),
        KubeService(meta("s2", OTHER)),
        KubeService(meta("s3", owner_references=OURS)),
    ]

    found = await controller(TestKind().knows(of), api).get_services_for_job(of)

    assert sorted(each.metadata.name for each in found) == ["s1", "s3"]
    assert list(api.patched) == ["s1"]


def test_a_pods_controller_is_the_one_owner_that_controls_it() -> None:
    assert KubePod(
        meta("p", owner_references=(owner(controller=False), owner("9")))
    ).metadata.controller == owner("9")
