"""Gangs on a real API server: all members or none; the test plays the scheduler and the kubelet."""

from __future__ import annotations

import msgspec
import pytest

from farmd.kubernetes.jobs.podgroups import flavours
from farmd.kubernetes.objects import BUDGETS, Resource
from tests.kubernetes.definitions import define
from tests.kubernetes.farmjobs import JOBS, RUNNING, SUCCEEDED, Jobs

pytestmark = pytest.mark.xdist_group("kubernetes")

GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
PLUGINS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
NATIVE = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")


@pytest.fixture
async def gangs(unclaimed: Jobs) -> Jobs:
    """Jobs of farms whose cluster has Volcano, unless a test says another scheduler before the first farm."""
    await define(unclaimed.server, GROUPS)
    unclaimed.gang = "volcano"
    return unclaimed


async def test_no_member_comes_before_the_scheduler_admits_the_gang(gangs: Jobs) -> None:
    await gangs.farm("first")
    gangs.create("bert", {"Worker": {"replicas": 2}})
    await gangs.until("the gang's object", lambda: set(gangs.listed(GROUPS)) == {"bert"})
    await gangs.until("a job that says what it waits for", lambda: "Blocked" in gangs.states("bert"))
    group = gangs.listed(GROUPS)["bert"]
    assert group["spec"]["minMember"] == 2
    assert gangs.pods() == {}

    gangs.server.patch(GROUPS.path(gangs.namespace, "bert", "status"), {"status": {"phase": "Inqueue"}})
    await gangs.until("both pods", lambda: len(gangs.pods()) == 2)

    pod = gangs.pods()["bert-worker-0"]
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "bert"
    for name in gangs.pods():
        gangs.play(name, SUCCEEDED)
    await gangs.until("a job that succeeded", lambda: "Succeeded" in gangs.states("bert"))
    await gangs.until("no object of the gang", lambda: gangs.listed(GROUPS) == {})


async def test_a_gang_of_another_size_is_told_to_its_scheduler_once(gangs: Jobs) -> None:
    await gangs.farm("first")
    gangs.create("gpt", {"Worker": {"replicas": 2}})
    await gangs.until("the gang's object", lambda: "gpt" in gangs.listed(GROUPS))
    before = gangs.listed(GROUPS)["gpt"]["metadata"]["generation"]

    gangs.server.patch(
        JOBS.path(gangs.namespace, "gpt"), {"spec": {"replicaSpecs": {"Worker": {"replicas": 3}}}}
    )
    await gangs.until("the new size", lambda: gangs.listed(GROUPS)["gpt"]["spec"]["minMember"] == 3)
    gangs.server.patch(GROUPS.path(gangs.namespace, "gpt", "status"), {"status": {"phase": "Running"}})
    await gangs.until("all pods", lambda: len(gangs.pods()) == 3)

    assert gangs.listed(GROUPS)["gpt"]["metadata"]["generation"] == before + 1


async def test_a_budget_stands_for_a_gang_where_no_scheduler_knows_gangs(gangs: Jobs) -> None:
    gangs.gang = "pdb"
    await gangs.farm("first")
    gangs.create("bert", {"Worker": {"replicas": 2}})
    await gangs.until("both pods", lambda: len(gangs.pods()) == 2)
    budget = gangs.listed(BUDGETS)["bert"]
    assert budget["spec"]["minAvailable"] == 2
    selected = budget["spec"]["selector"]["matchLabels"].items()
    assert all(selected <= each["metadata"]["labels"].items() for each in gangs.pods().values())

    for name in gangs.pods():
        gangs.play(name, SUCCEEDED)
    await gangs.until("a job that succeeded", lambda: "Succeeded" in gangs.states("bert"))
    await gangs.until("no budget", lambda: gangs.listed(BUDGETS) == {})


async def test_scheduler_plugins_know_a_gang_by_its_object_and_a_label(gangs: Jobs) -> None:
    await define(gangs.server, PLUGINS)
    gangs.gang = "scheduler-plugins"
    await gangs.farm("first")
    policy = {"minAvailable": 1, "scheduleTimeoutSeconds": 90, "minResources": {"cpu": "2"}}
    gangs.create("bert", {"Worker": {"replicas": 2}}, runPolicy={"schedulingPolicy": policy})
    await gangs.until("both pods", lambda: len(gangs.pods()) == 2)
    spec = gangs.listed(PLUGINS)["bert"]["spec"]
    assert spec == {"minMember": 1, "scheduleTimeoutSeconds": 90, "minResources": {"cpu": "2"}}
    for pod in gangs.pods().values():
        assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
        assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "bert"
    await _goes_with_the_verdict(gangs, PLUGINS)


async def test_kubernetes_own_scheduler_is_told_of_a_gang_in_its_own_words(
    gangs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.36 serves the resource of 1.37 as an earlier version, and checks it by its own schema."""
    own = msgspec.structs.replace(flavours()["native"], version=NATIVE.version)
    monkeypatch.setitem(flavours(), "native", own)
    gangs.gang = "native"
    await gangs.farm("first")
    gangs.create("bert", {"Worker": {"replicas": 2}})
    await gangs.until("both pods", lambda: len(gangs.pods()) == 2)
    group = gangs.listed(NATIVE)["bert"]
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    for pod in gangs.pods().values():
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": "bert"}
    await _goes_with_the_verdict(gangs, NATIVE)


async def _goes_with_the_verdict(gangs: Jobs, groups: Resource) -> None:
    """The gang's object is written once, and deleted once the job is over; it is the job's own."""
    group = gangs.listed(groups)["bert"]
    assert group["metadata"]["ownerReferences"][0]["uid"] == gangs.job("bert")["metadata"]["uid"]
    for name in gangs.pods():
        gangs.play(name, RUNNING)
    await gangs.until("a job that runs", lambda: "Running" in gangs.states("bert"))
    assert gangs.listed(groups)["bert"]["metadata"]["resourceVersion"] == group["metadata"]["resourceVersion"]
    for name in gangs.pods():
        gangs.play(name, SUCCEEDED)
    await gangs.until("a job that succeeded", lambda: "Succeeded" in gangs.states("bert"))
    # A controller of Kubernetes, which does not run here, lets its own scheduler's objects go.
    await gangs.until("no object of the gang that stays", lambda: not _staying(gangs, groups))


def _staying(gangs: Jobs, groups: Resource) -> list[str]:
    found = gangs.listed(groups).items()
    return [name for name, each in found if "deletionTimestamp" not in each["metadata"]]
