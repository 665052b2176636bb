"""Gangs on a real API server: all members or none; the test plays the scheduler and the kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from farmd.kubernetes.install import install
from farmd.kubernetes.resources import BUDGETS, CRDS, Resource
from farmd.kubernetes.settings import KubernetesSettings
from farmd.runtime.clock import SystemClock
from tests.fleet import client_of, cluster_on, eventually, start_farm
from tests.kubernetes.test_farmjobs import SUCCEEDED, Jobs

pytestmark = pytest.mark.xdist_group("kubernetes")

GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
# As much of Volcano's own as a controller of jobs uses.
SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
VERSION = {
    "name": "v1beta1",
    "served": True,
    "storage": True,
    "subresources": {"status": {}},
    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SCHEMA, "status": SCHEMA}}},
}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        "group": GROUPS.group,
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "versions": [VERSION],
    },
}


class Gangs(Jobs):
    """Jobs of farms whose cluster has a scheduler of gangs."""

    flavour = "volcano"

    async def farm(self, name: str) -> None:
        """One more farm."""
        self._farms[name] = stack = AsyncExitStack()
        transport = await stack.enter_async_context(self._connect(self.server))
        settings = KubernetesSettings(
            transport, name=self.namespace, namespaces=(self.namespace,), gang=self.flavour
        )
        client = client_of(self._address)
        stack.push_async_callback(client.close)
        outside, keys = {"kubernetes": settings}, self._cluster.keys
        farm = await start_farm(client, name, keys=keys, kinds=("kubejobs",), outside=outside)
        stack.push_async_callback(farm.close)

    def listed(self, kind: Resource) -> dict[str, dict[str, Any]]:
        """All objects of a resource by name."""
        items = self.server.ask("GET", kind.path(self.namespace))["items"]
        return {each["metadata"]["name"]: each for each in items}


@pytest.fixture
async def gangs(api, namespace, connect, consul_dev) -> AsyncIterator[Gangs]:
    async with connect(api) as admin:
        await install(admin, ("farmjobs",), SystemClock())
    if CRD["metadata"]["name"] not in {  # type: ignore[index]
        each["metadata"]["name"] for each in api.ask("GET", CRDS.path())["items"]
    }:
        api.ask("POST", CRDS.path(), CRD)

    async def established() -> bool:
        found = api.ask("GET", CRDS.path(name=CRD["metadata"]["name"]))  # type: ignore[index]
        conditions = (found.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    await eventually(established, what="the kind of groups")
    async with cluster_on(consul_dev) as cluster:
        found = Gangs(api, namespace, cluster, consul_dev, connect)
        try:
            yield found
        finally:
            await found.close()


async def test_no_member_comes_before_the_scheduler_admits_the_gang(gangs: Gangs) -> None:
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


async def test_a_gang_of_another_size_is_told_to_its_scheduler_once(gangs: Gangs) -> None:
    await gangs.farm("first")
    gangs.create("gpt", {"Worker": {"replicas": 2}})
    await gangs.until("the gang's object", lambda: "gpt" in gangs.listed(GROUPS))
    before = gangs.listed(GROUPS)["gpt"]["metadata"]["generation"]

    path = Resource("farmd.io", "v1", "farmjobs", "FarmJob").path(gangs.namespace, "gpt")
    gangs.server.patch(path, {"spec": {"replicaSpecs": {"Worker": {"replicas": 3}}}})
    await gangs.until("the new size", lambda: gangs.listed(GROUPS)["gpt"]["spec"]["minMember"] == 3)
    gangs.server.patch(GROUPS.path(gangs.namespace, "gpt", "status"), {"status": {"phase": "Running"}})
    await gangs.until("all pods", lambda: len(gangs.pods()) == 3)

    assert gangs.listed(GROUPS)["gpt"]["metadata"]["generation"] == before + 1


async def test_a_budget_stands_for_a_gang_where_no_scheduler_knows_gangs(gangs: Gangs) -> None:
    gangs.flavour = "pdb"
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
