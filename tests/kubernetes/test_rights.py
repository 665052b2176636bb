"""Farms under the shipped rights alone: for all namespaces, or for some by Roles and their bindings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from farmd.kubernetes.objects import CRDS
from tests.farmctl import Result
from tests.fleet import eventually
from tests.kubernetes.farmjobs import SUCCEEDED, Jobs
from tests.kubernetes.job_people import Run, person

pytestmark = pytest.mark.xdist_group("kubernetes")


@pytest.fixture
def farmctl(unclaimed: Jobs, tmp_path: Path) -> Run:
    """``farmctl`` of an administrator of both systems."""
    return person(unclaimed, tmp_path)


def states(told: Result) -> dict[str, str]:
    assert told.code == 0, told.err
    return {one["name"]: one["state"] for one in told.json["items"]}


async def test_a_farm_runs_jobs_of_its_namespaces_with_roles_there_alone(unclaimed: Jobs, farmctl) -> None:
    words = ("--namespace", unclaimed.namespace, "--subject", "user/spaces")
    installed = await farmctl("kubernetes", "install", *words)
    assert installed.code == 0, installed.err
    await unclaimed.farm("first", "spaces")
    unclaimed.create("least", {"Worker": {"replicas": 1}}, runPolicy={"ttlSecondsAfterFinished": 0})
    await unclaimed.until("a pod", lambda: len(unclaimed.pods()) == 1)
    unclaimed.play("least-worker-0", SUCCEEDED)
    jobs = f"/apis/farmd.io/v1/namespaces/{unclaimed.namespace}/farmjobs"
    await unclaimed.until("no job", lambda: not unclaimed.server.ask("GET", jobs)["items"])
    assert not unclaimed.running("first").farm.features.reports[unclaimed.namespace].troubles
    denials = unclaimed.settings("first").transport.denials
    assert denials.current() == []
    await unclaimed.client.put(unclaimed.keys.farm("broken"), b"[]")  # which hides no other farm
    found = states(await farmctl("kubernetes", "status", *words, "-o", "json"))
    assert found["farmd-jobs"] == found["farmd-identity"] == "there"
    assert found[f"first in {unclaimed.namespace}"] == "works"


async def test_printed_rights_of_namespaces_hold_no_cluster_role(farmctl) -> None:
    printed = await farmctl(
        "kubernetes", "install", "--print", "--namespace", "ml", "--subject", "serviceaccount/ops/farmd"
    )
    found: list[dict[str, Any]] = list(yaml.safe_load_all(printed.out))
    assert [(one["kind"], one["metadata"].get("namespace", "")) for one in found[1:]] == [
        ("Role", "ml"),
        ("RoleBinding", "ml"),
        ("Role", "kube-system"),
        ("RoleBinding", "kube-system"),
    ]
    assert found[2]["subjects"] == [{"kind": "ServiceAccount", "namespace": "ops", "name": "farmd"}]
    assert found[3]["rules"] == [
        {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]}
    ]


@pytest.mark.parametrize("subject", ["farm", "user/", "robot/x", "serviceaccount/x", "serviceaccount/a/b/c"])
async def test_a_subject_that_is_none_is_refused_in_one_line(farmctl, subject: str) -> None:
    refused = await farmctl("kubernetes", "install", "--print", "--namespace", "ml", "--subject", subject)
    assert refused.code == 2
    assert f"subject: found '{subject}', expected user/NAME, group/NAME or serviceaccount" in refused.err


async def test_a_cluster_that_was_replaced_is_accepted_at_a_person_s_word(unclaimed: Jobs, farmctl) -> None:
    key, name = unclaimed.keys.other_cluster(unclaimed.namespace), unclaimed.namespace
    await unclaimed.client.put(key, b'{"uid": "other", "later": 1}')
    await unclaimed.farm("first")
    unclaimed.create("waits", {"Worker": {"replicas": 1}})
    await unclaimed.until_frozen("first")
    refused = await farmctl("kubernetes", "accept", "--name", name)
    assert refused.code == 2
    assert "-y" in refused.err
    words = ("kubernetes", "accept", "--name", name, "-y", "--reason", "moved")
    taken = await farmctl(*words)
    assert taken.code == 0, taken.err
    assert taken.out.startswith(f"kubernetes/{name} accepted")
    await unclaimed.until("a pod", lambda: len(unclaimed.pods()) == 1)
    entry = await unclaimed.client.read(key)
    assert entry is not None
    assert json.loads(entry.value)["later"] == 1
    assert (await farmctl(*words)).out.startswith(f"kubernetes/{name} unchanged")
    audit = (await farmctl("audit", "list", "-o", "json")).json["items"]
    assert [one["reason"] for one in audit if one["action"] == "kubernetes.accept"] == ["moved"]


async def test_a_definition_that_lacks_fields_is_told_by_status_and_doctor_until_it_is_installed(
    unclaimed: Jobs, farmctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farmd.kubernetes.contact.DEFINITIONS_SECONDS", 0.0)
    monkeypatch.setattr("farmd.kubernetes.contact.LOOK_SECONDS", 0.2)
    monkeypatch.setattr("farmd.kubernetes.contact.LASTING_SECONDS", 0.0)
    path = CRDS.path(name="farmjobs.farmd.io")
    schema = unclaimed.server.ask("GET", path)
    spec = schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["runPolicy"]["properties"]["restartScope"]
    unclaimed.server.ask("PUT", path, schema)
    await unclaimed.farm("first")

    async def found() -> str:
        report = await farmctl("doctor", "-o", "json")
        items = report.json["items"]
        return next((one["explanation"] for one in items if one["code"] == "kubernetes-older"), "")

    text = await eventually(found, what="a finding")
    assert "farmjobs.farmd.io lacks spec.runPolicy.restartScope" in text
    told = states(await farmctl("kubernetes", "status", "-o", "json"))["farmjobs.farmd.io"]
    assert told == "older: lacks spec.runPolicy.restartScope"
    assert (await farmctl("kubernetes", "install")).code == 0

    async def over() -> bool:
        return not await found()

    await eventually(over, what="no finding")
    assert states(await farmctl("kubernetes", "status", "-o", "json"))["farmjobs.farmd.io"] == "established"
