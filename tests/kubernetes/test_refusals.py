"""Whatever the API server answers is told in its words, once, and waited for without a word in the audit each
time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from farmd.kubernetes.objects import EVENTS, PODS, Resource
from store.audit import Audit, AuditReader, Filter
from store.consul.client import ConsulClient
from store.keys import Keys
from tests.fleet import eventually
from tests.kubernetes import admission
from tests.kubernetes.apps import Apps
from tests.kubernetes.farmjobs import Jobs, template
from tests.kubernetes.job_people import person

pytestmark = pytest.mark.xdist_group("kubernetes")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
POKES = 20


@contextmanager
def quota(jobs: Jobs) -> Iterator[str]:
    path = QUOTAS.path(jobs.namespace)
    hard = {"hard": {"pods": "0"}}
    jobs.server.ask("POST", path, {"metadata": {"name": "none"}, "spec": hard})
    jobs.server.patch(f"{path}/none/status", {"status": hard | {"used": {"pods": "0"}}})
    yield "exceeded quota: none"
    jobs.server.ask("DELETE", f"{path}/none")


def webhook(jobs: Jobs) -> AbstractContextManager[str]:
    return admission.webhook(jobs.server, jobs.namespace, admission.rule("pods"))


def policy(jobs: Jobs) -> AbstractContextManager[str]:
    return admission.policy(jobs.server, jobs.namespace, admission.rule("pods"))


@contextmanager
def name_taken(jobs: Jobs) -> Iterator[str]:
    pod = {"metadata": {"name": "bert-worker-0"}} | {"spec": template()["spec"]}
    jobs.server.ask("POST", PODS.path(jobs.namespace), pod)
    yield f"waits for {jobs.namespace}/bert-worker-0 of no owner, which has that name"
    jobs.server.ask("DELETE", PODS.path(jobs.namespace, "bert-worker-0"), {"gracePeriodSeconds": 0})


@contextmanager
def class_missing(jobs: Jobs) -> Iterator[str]:
    yield f"no PriorityClass with name {jobs.namespace} was found"
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    jobs.server.ask("POST", path, {"metadata": {"name": jobs.namespace}, "value": 1})


@contextmanager
def terminating(jobs: Jobs) -> Iterator[str]:
    jobs.server.ask("DELETE", f"/api/v1/namespaces/{jobs.namespace}")
    yield f"unable to create new content in namespace {jobs.namespace} because it is being terminated"


async def records(client: ConsulClient, keys: Keys, item: str) -> list[Audit]:
    return list(await AuditReader(client, keys).read(Filter(item=item), 1000))


WAYS = [quota, webhook, policy, name_taken, class_missing, terminating]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_refusal_is_told_everywhere_and_fills_no_audit(
    unclaimed: Jobs, tmp_path: Path, way: Callable[[Jobs], Any]
) -> None:
    jobs, farmctl = unclaimed, person(unclaimed, tmp_path)
    own = template()
    if way is class_missing:
        own["spec"]["priorityClassName"] = jobs.namespace
    uid = jobs.create("bert", {"Worker": {"replicas": 3, "template": own}})["metadata"]["uid"]
    name = f"{jobs.namespace}/bert"

    def blocked() -> str:
        conditions = jobs.job("bert").get("status", {}).get("conditions") or []
        return next((one["message"] for one in conditions if one["type"] == "Blocked"), "")

    with way(jobs) as words:
        await jobs.farm("first")
        await jobs.until("the words in its conditions", lambda: words in blocked())
        for command in ("describe", "explain"):
            assert words in (await farmctl("job", command, name)).out
        listed = await farmctl("job", "list", "-o", "json")
        assert [words in each["status"]["reason"] for each in listed.json["items"]] == [True]
        if way is not terminating:  # which takes no events either
            events = jobs.listed(EVENTS).values()
            assert any(words in each["message"] for each in events if each["reason"] == "Refused")
        for number in range(POKES):
            change = {"metadata": {"annotations": {"poke": str(number)}}}
            jobs.server.patch(jobs.resource.path(jobs.namespace, "bert"), change)

        async def tried_again() -> bool:
            tries = [
                each.after["tries"]
                for each in await records(jobs.client, jobs.keys, uid)
                if each.action == "job.refused"
            ]
            return tries == [tries[0]] and int(tries[0]) >= 2

        await eventually(tried_again, what="another try")
        actions = sorted(each.action for each in await records(jobs.client, jobs.keys, uid))
        # The service that its members share was made by the first of two batches, unless that was refused.
        assert actions in (["job.members", "job.refused"], ["job.members", "job.members", "job.refused"])
    if way is not terminating:
        await jobs.until("all pods", lambda: len(jobs.pods()) == 3)
        await jobs.until("a job that goes on", lambda: "Blocked" not in jobs.states("bert"))


@pytest.mark.parametrize("way", [admission.webhook, admission.policy], ids=lambda way: way.__name__)
async def test_a_refusal_of_an_app_is_told_at_once_and_fills_no_audit(apps: Apps, way: Any) -> None:
    client, keys = apps.cluster.client, apps.cluster.keys
    with way(apps.api, apps.namespace, admission.rule("configmaps")) as words:
        await apps.farm("first")
        own = {"apiVersion": "v1", "metadata": {"name": "a"}}
        ports = {"clusterIP": "None", "ports": [{"port": 80}]}
        await apps.apply("shop", own | {"kind": "ConfigMap"}, own | {"kind": "Service", "spec": ports})
        await apps.blocked("shop", words)
        for number in range(POKES):  # each of these wakes the app's worker
            meta = {"metadata": {"annotations": {"poke": str(number)}}}
            apps.api.patch(f"/api/v1/namespaces/{apps.namespace}/services/a", meta)

        async def tried_again() -> bool:
            found = [each for each in await records(client, keys, "shop") if each.action == "app.refused"]
            assert len(found) <= 1
            return bool(found) and int(found[0].after["tries"]) >= 2

        await eventually(tried_again, what="another try")
        assert len(await records(client, keys, "shop")) <= 6
    await apps.reached("shop", 1)
