"""Farms run FarmJobs on a real API server, from the resource to its verdict; the test plays the kubelet."""

from __future__ import annotations

import pytest

from farmd.kubernetes.jobs import kind
from farmd.kubernetes.jobs.kind import KubeJobWorker
from farmd.kubernetes.objects import EVENTS, PODS, SERVICES
from farmd.kubernetes.transport import ApiRequest
from store.jobs import Run
from tests.fleet import eventually
from tests.kubernetes.farmjobs import JOBS, RUNNING, SUCCEEDED, Jobs, failed, noting

pytestmark = pytest.mark.xdist_group("kubernetes")


async def test_a_job_is_claimed_gets_its_pods_and_succeeds(jobs: Jobs) -> None:
    jobs.create("bert", {"Worker": {"replicas": 3}})
    await jobs.until("three pods", lambda: set(jobs.pods()) == {f"bert-worker-{i}" for i in range(3)})
    assert jobs.server.ask("GET", SERVICES.path(jobs.namespace, "bert"))["spec"]["clusterIP"] == "None"
    for pod in jobs.pods():
        jobs.play(pod, RUNNING)
    await jobs.until("a job that runs", lambda: "Running" in jobs.states("bert"))
    for pod in jobs.pods():
        jobs.play(pod, SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("bert"))
    status = jobs.job("bert")["status"]
    assert status["completionTime"] >= status["startTime"]
    assert status["claim"]
    assert jobs.states("bert") == {"Created", "Succeeded"}


async def test_a_failed_member_is_tried_again_and_counted_once(jobs: Jobs) -> None:
    jobs.create("retry", {"Worker": {"replicas": 2, "restartPolicy": "ExitCode"}})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    first = jobs.pods()["retry-worker-1"]["metadata"]["uid"]
    jobs.play("retry-worker-1", failed(137))

    def replaced() -> bool:
        pod = jobs.pods().get("retry-worker-1")
        return pod is not None and pod["metadata"]["uid"] != first

    await jobs.until("a second attempt", replaced)
    assert jobs.pods()["retry-worker-1"]["metadata"]["annotations"]["farmd.io/attempt"] == "1"
    for pod in jobs.pods():
        jobs.play(pod, SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("retry"))
    assert jobs.job("retry")["status"]["restarts"] == 1


async def test_a_job_fails_for_good_with_the_code_that_says_so(jobs: Jobs) -> None:
    jobs.create("bad", {"Worker": {"replicas": 1, "restartPolicy": "ExitCode"}})
    await jobs.until("a pod", lambda: len(jobs.pods()) == 1)
    jobs.play("bad-worker-0", failed(1))
    await jobs.until("a job that failed", lambda: "Failed" in jobs.states("bad"))
    assert list(jobs.pods()) == ["bad-worker-0"]


async def test_a_template_that_the_server_refuses_fails_the_job_with_its_words(jobs: Jobs) -> None:
    job = {"template": {"spec": {"containers": [{"name": "No Name", "image": "none"}]}}}
    jobs.create("refused", {"Worker": job})
    await jobs.until("a job that failed", lambda: "Failed" in jobs.states("refused"))
    (condition,) = (one for one in jobs.job("refused")["status"]["conditions"] if one["type"] == "Failed")
    assert condition["reason"] == "JobFailedValidation"
    assert "spec.containers[0].name" in condition["message"]

    def told() -> bool:
        events = jobs.server.ask("GET", EVENTS.path(jobs.namespace))["items"]
        return [one["reason"] for one in events if one["involvedObject"]["name"] == "refused"] == [
            "FailedCreatePod"
        ]

    await jobs.until("an event on the job", told)
    assert not jobs.pods()


async def test_another_farm_finishes_what_one_began(jobs: Jobs) -> None:
    jobs.create("handed", {"Worker": {"replicas": 2}})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    uids = {name: pod["metadata"]["uid"] for name, pod in jobs.pods().items()}
    claim = jobs.job("handed")["status"]["claim"]
    await jobs.stop("first")
    await jobs.farm("second")
    for pod in jobs.pods():
        jobs.play(pod, SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("handed"))
    assert {name: pod["metadata"]["uid"] for name, pod in jobs.pods().items()} == uids
    assert jobs.job("handed")["status"]["claim"] != claim


async def test_the_end_of_a_member_is_told_with_the_other_counters_and_not_at_once(
    unclaimed: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "STATUS_PAUSE", 3600.0)
    jobs, writes = unclaimed, list[ApiRequest]()
    await jobs.falling("first", noting(writes))
    uid = jobs.create("many", {"Worker": {"replicas": 3}})["metadata"]["uid"]
    await jobs.until("all pods", lambda: len(jobs.pods()) == 3)
    for number, pod in enumerate(sorted(jobs.pods())):
        jobs.play(pod, SUCCEEDED)
        done = {"Worker": f"0-{number}" if number else "0"}

        async def noted(done: dict[str, str] = done) -> bool:
            return (await jobs.runs()).get(uid, Run()).done == done

        await eventually(noted, what="the end of one member")
        if number == 0:
            await jobs.until("a job that runs", lambda: "Running" in jobs.states("many"))
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("many"))
    methods = [each.method for each in writes]
    assert methods == ["PATCH", *["POST"] * 4, "PATCH", "PATCH"], "it begins, it runs, it succeeded"


async def test_a_suspended_job_has_no_pods_until_it_is_resumed(jobs: Jobs) -> None:
    jobs.create("rests", {"Worker": {"replicas": 2}})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    jobs.server.patch(JOBS.path(jobs.namespace, "rests"), {"spec": {"runPolicy": {"suspend": True}}})
    await jobs.until("no pods", lambda: not jobs.pods() and "Suspended" in jobs.states("rests"))
    jobs.server.patch(JOBS.path(jobs.namespace, "rests"), {"spec": {"runPolicy": {"suspend": False}}})
    await jobs.until("pods again", lambda: len(jobs.pods()) == 2)


async def test_a_template_that_is_changed_under_members_counts_for_none_until_the_job_is_stopped(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farmd.jobs.progress.FIRST_RETRY_SECONDS", 0.1)
    path = JOBS.path(jobs.namespace, "fixed")
    jobs.create("fixed", {"Worker": {"replicas": 2, "restartPolicy": "ExitCode"}})
    names = {"fixed-worker-0", "fixed-worker-1"}
    await jobs.until("two pods", lambda: jobs.pods().keys() == names)
    for name in names:
        jobs.play(name, RUNNING)
    await jobs.until("a job that runs", lambda: "Running" in jobs.states("fixed"))
    other = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    jobs.server.patch(path, {"spec": {"replicaSpecs": {"Worker": {"template": other}}}})
    jobs.play("fixed-worker-0", failed(137))
    await jobs.until("a retry that waits", lambda: jobs.pods().keys() == {"fixed-worker-1"})
    await jobs.until("the reason", lambda: "Blocked" in jobs.states("fixed"))
    (blocked,) = [each for each in jobs.job("fixed")["status"]["conditions"] if each["type"] == "Blocked"]
    assert blocked["reason"] == "TemplateChanged"
    assert jobs.pods().keys() == {"fixed-worker-1"}
    for suspend in (True, False):
        jobs.server.patch(path, {"spec": {"runPolicy": {"suspend": suspend}}})
        await jobs.until("all pods, or none", lambda: len(jobs.pods()) == (0 if suspend else 2))  # noqa: B023
    images = {each["spec"]["containers"][0]["image"] for each in jobs.pods().values()}
    assert images == {"other"}
    await jobs.until("no reason any more", lambda: "Blocked" not in jobs.states("fixed"))


async def test_a_finished_job_is_deleted_when_its_time_is_over(jobs: Jobs) -> None:
    jobs.create("short", {"Worker": {"replicas": 1}}, runPolicy={"ttlSecondsAfterFinished": 0})
    await jobs.until("a pod", lambda: len(jobs.pods()) == 1)
    jobs.play("short-worker-0", SUCCEEDED)
    await jobs.until("no job", lambda: not jobs.server.ask("GET", JOBS.path(jobs.namespace))["items"])


async def test_a_job_made_anew_under_its_name_waits_for_the_old_one_s_pods_and_is_woken_by_their_end(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KubeJobWorker, "BACKOFF", (3600.0, 3600.0))
    monkeypatch.setattr("farmd.jobs.report.BLOCKED_SECONDS", 0.0)
    old = jobs.create("again", {"Worker": {"replicas": 1}}, services="none")["metadata"]["uid"]
    await jobs.until("a pod", lambda: len(jobs.pods()) == 1)
    jobs.server.ask("DELETE", JOBS.path(jobs.namespace, "again"))  # no garbage collector runs here
    new = jobs.create("again", {"Worker": {"replicas": 1}}, services="none")["metadata"]["uid"]
    await jobs.until_status(f"waits for {jobs.namespace}/again-worker-0 of a deleted job")
    key, alerts = f"job_blocked_{new}", jobs.alerts("first")
    assert alerts.firing[key].summary.startswith(f"job '{jobs.namespace}/again' is blocked: waits for")

    def owner() -> str:
        pod = jobs.pods().get("again-worker-0")
        return "" if pod is None else pod["metadata"]["ownerReferences"][0]["uid"]

    assert owner() == old
    now = {"gracePeriodSeconds": 0}
    jobs.server.ask("DELETE", PODS.path(jobs.namespace, "again-worker-0"), now)
    await jobs.until("the new job's pod", lambda: owner() == new)
    await jobs.until("no alert, and no status in Consul", lambda: key in alerts.resolved)
    await jobs.until_no_status()
