"""``farmctl kubernetes`` on a real API server, and farms under the rights that it installs."""

from __future__ import annotations

import json
import urllib.error

import pytest
import yaml

from farmd.kubernetes.install import KNATIVE, documents
from farmd.kubernetes.knative.objects import ORCHESTRATORS
from farmd.kubernetes.objects import CRDS
from tests.farmctl import Farmctl
from tests.kubernetes.farmjobs import JOBS, SUCCEEDED, Jobs, template
from tests.kubernetes.knative_rules import definitions

pytestmark = pytest.mark.xdist_group("kubernetes")


@pytest.fixture
def farmctl(api, tmp_path, consul_dev):
    config = tmp_path / "admin.json"
    config.write_text(api.kubeconfig())
    run = Farmctl(consul_dev, "none/", inside=True)
    return lambda *words: run("kubernetes", *words, "--kubeconfig", str(config))


def test_install_is_told_by_status_and_twice_is_once(api, farmctl):
    assert farmctl("install").code == 0
    first = api.ask("GET", CRDS.path(name="farmjobs.farmd.io"))["metadata"]["generation"]
    told = farmctl("install", "-o", "json")
    states = {one["name"]: one["state"] for one in json.loads(told.out)["items"]}
    assert states == {"farmjobs.farmd.io": "established", "farmd-jobs": "there"}
    assert api.ask("GET", CRDS.path(name="farmjobs.farmd.io"))["metadata"]["generation"] == first


def test_uninstall_is_refused_while_jobs_exist(api, farmctl, namespace):
    assert farmctl("install").code == 0
    body = {"metadata": {"name": "kept"}, "spec": {"replicaSpecs": {"Worker": {"template": template()}}}}
    api.ask("POST", JOBS.path(namespace), {"apiVersion": "farmd.io/v1", "kind": "FarmJob"} | body)
    refused = farmctl("uninstall", "-y")
    assert refused.code == 5
    assert "delete them first" in refused.err
    assert farmctl("status", "-o", "json").out.count("established") == 1


def test_print_asks_no_server(tmp_path, consul_dev):
    printed = Farmctl(consul_dev, "none/", inside=True)("kubernetes", "install", "--print")
    kinds = [one["kind"] for one in yaml.safe_load_all(printed.out)]
    assert kinds == ["CustomResourceDefinition", "ClusterRole"]


def test_rights_of_namespaces_alone_are_refused_beside_progressive_rollouts(consul_dev):
    """They read a definition, which lies in no namespace: a Role cannot allow that."""
    run = Farmctl(consul_dev, "none/", inside=True)
    refused = run("kubernetes", "install", "--progressive", "--namespace", "ml", "--print")
    assert (refused.code, refused.out) == (2, "")
    assert "--namespace: found one beside --progressive, expected none: farms read Knative's" in refused.err


def test_a_server_that_is_away_or_refuses_has_its_exit_code(api, tmp_path, consul_dev):
    run = Farmctl(consul_dev, "none/", inside=True)
    config = tmp_path / "config.json"
    config.write_text(api.kubeconfig("nobody"))
    assert run("kubernetes", "install", "--kubeconfig", str(config)).code == 6
    config.write_text(api.kubeconfig().replace(str(api.port), "1"))
    assert run("kubernetes", "status", "--kubeconfig", str(config)).code == 7
    config.write_text("clusters: [")
    assert run("kubernetes", "status", "--kubeconfig", str(config)).code == 2


async def test_a_farm_runs_jobs_with_the_rights_of_its_cluster_role_alone(unclaimed: Jobs):
    roles = unclaimed.server.ask("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/farmd-jobs")
    unclaimed.server.grant("farm", *roles["rules"])
    await unclaimed.farm("first", "farm")
    job = unclaimed.create("least", {"Worker": {"replicas": 1}}, runPolicy={"ttlSecondsAfterFinished": 0})
    await unclaimed.until("a pod", lambda: len(unclaimed.pods()) == 1)
    assert unclaimed.job("least")["metadata"]["uid"] == job["metadata"]["uid"]
    unclaimed.play("least-worker-0", SUCCEEDED)
    await unclaimed.until(
        "no job", lambda: not unclaimed.server.ask("GET", JOBS.path(unclaimed.namespace))["items"]
    )


BAD = {
    "no types": ({"replicaSpecs": {}}, "should have at least 1 properties"),
    "negative replicas": (
        {"replicaSpecs": {"W": {"replicas": -1, "template": {}}}},
        "greater than or equal to 0",
    ),
    "too many replicas without parallelism": (
        {"replicaSpecs": {"W": {"replicas": 5001, "template": {}}}},
        "a type without parallelism has more than 5000 replicas",
    ),
    "negative backoff": (
        {"replicaSpecs": {"W": {"template": {}}}, "runPolicy": {"backoffLimit": -1}},
        "greater than or equal to 0",
    ),
    "types alike but for case": (
        {"replicaSpecs": {"Worker": {"template": {}}, "worker": {"template": {}}}},
        "differ by upper and lower case alone",
    ),
    "success over an unknown type": (
        {"replicaSpecs": {"W": {"template": {}}}, "successPolicy": {"replicaTypes": ["X"]}},
        "expected types of replicaSpecs",
    ),
    "names that are too long": ({"replicaSpecs": {"W" * 60: {"template": {}}}}, "longer than 63 characters"),
}


@pytest.mark.parametrize("name", BAD)
def test_the_definition_refuses_what_could_never_run(api, farmctl, namespace, name):
    assert farmctl("install").code == 0
    spec, expected = BAD[name]
    body = {"apiVersion": "farmd.io/v1", "kind": "FarmJob", "metadata": {"name": "bad"}, "spec": spec}
    with pytest.raises(urllib.error.HTTPError) as refused:
        api.ask("POST", JOBS.path(namespace), body)
    with refused.value as error:
        assert error.code == 422
        assert expected in error.read().decode()


def test_progressive_rollouts_have_definitions_of_their_own_and_rights_of_their_own(api, farmctl):
    if KNATIVE in {each["metadata"]["name"] for each in api.ask("GET", CRDS.path())["items"]}:
        gone(api, KNATIVE)
    told = farmctl("install", "--progressive", "-o", "json")
    states = {one["name"]: one["state"] for one in json.loads(told.out)["items"]}
    assert states["rolloutorchestrators.serving.knative.dev"] == "established"
    assert states["stagepodautoscalers.serving.knative.dev"] == "established"
    assert states["farmd-progressive"] == "there"
    assert states[KNATIVE] == "absent"
    services = next(each for each in definitions("1.20.1") if each["metadata"]["name"] == KNATIVE)
    api.ask("POST", CRDS.path(), services)
    assert f"{KNATIVE} 1.20.1" in " ".join(farmctl("status", "--progressive").out.split())
    assert "Knative" not in farmctl("status").out


def test_a_definition_of_another_installation_is_neither_changed_nor_removed(api, farmctl, restored):
    theirs = next(each for each in documents((), progressive=True) if each["metadata"]["name"] == restored)
    theirs["spec"]["names"]["shortNames"] = ["theirs"]
    api.ask("POST", CRDS.path(), theirs)
    assert farmctl("install", "--progressive").code == 0
    assert farmctl("uninstall", "--jobs", "tfjobs", "--progressive", "-y").code == 0
    found = api.ask("GET", CRDS.path(name=restored))
    assert found["spec"]["names"]["shortNames"] == ["theirs"]


def test_uninstall_is_refused_while_rollouts_exist(api, farmctl, namespace):
    assert farmctl("install", "--progressive").code == 0
    forget(api)
    api.ask("POST", ORCHESTRATORS.path(namespace), orchestrator("kept"))
    refused = farmctl("uninstall", "--jobs", "tfjobs", "--progressive", "-y")
    assert refused.code == 5
    assert f"found objects, such as {namespace}/kept" in refused.err
    api.ask("DELETE", ORCHESTRATORS.path(namespace, "kept"))


def test_objects_of_an_upstream_installation_are_accepted_as_they_are(api, farmctl, namespace):
    """A finish time that is not known is null; percent 0 and no percent are different; unknown fields go."""
    assert farmctl("install", "--progressive").code == 0
    revisions = [{"revisionName": "web-00001", "percent": 0}, {"revisionName": "web-00002", "mine": "x"}]
    spec = {"stageTargetRevisions": revisions, "targetFinishTime": None, "mine": "x"}
    created = api.ask("POST", ORCHESTRATORS.path(namespace), orchestrator("web") | {"spec": spec})
    kept = [{"revisionName": "web-00001", "percent": 0}, {"revisionName": "web-00002"}]
    assert created["spec"] == {"stageTargetRevisions": kept}
    status = {"stageRevisionStatus": kept, "annotations": {"farmd.io/claim": "a/1"}}
    patched = api.patch(ORCHESTRATORS.path(namespace, "web", "status"), {"status": status})
    assert patched["status"] == status
    assert patched["metadata"]["generation"] == 1
    api.ask("DELETE", ORCHESTRATORS.path(namespace, "web"))


@pytest.fixture
def restored(api, farmctl):
    """The name of a definition that is absent, and farmd's own again afterwards."""
    name = "stagepodautoscalers.serving.knative.dev"
    assert farmctl("install", "--progressive").code == 0
    forget(api)
    gone(api, name)
    yield name
    gone(api, name)


def forget(api) -> None:
    """Delete the records that other tests left, which no farm holds any more."""
    for each in api.ask("GET", ORCHESTRATORS.path())["items"]:
        path = ORCHESTRATORS.path(each["metadata"]["namespace"], each["metadata"]["name"])
        if each["metadata"].get("finalizers"):
            api.patch(path, {"metadata": {"finalizers": None}})
        api.ask("DELETE", path)


def gone(api, name: str) -> None:
    """Delete a definition, and wait until its name is free."""
    api.ask("DELETE", CRDS.path(name=name))
    while api.ask("GET", f"{CRDS.path()}?fieldSelector=metadata.name={name}")["items"]:
        pass


def orchestrator(name: str) -> dict[str, object]:
    return {"apiVersion": "serving.knative.dev/v1", "kind": "RolloutOrchestrator", "metadata": {"name": name}}


def test_doctor_tells_when_the_certificates_of_a_cluster_end(api, tmp_path, consul_dev):
    config = tmp_path / "admin.json"
    config.write_text(api.kubeconfig())
    run = Farmctl(consul_dev, "none/", variables={"KUBECONFIG": str(config)})
    items = run("doctor", "-o", "json").json["items"]
    ending = [item["object"] for item in items if item["code"] == "certificate-ends"]
    assert ending == [f"{config} (context 'test')", api.url]
