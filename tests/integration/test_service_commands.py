"""``farmctl service``: changes of a deployed service are deployments; what was not deployed is told apart."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from farmd.deploy.manifest import compiled
from farmd.deploy.resolver import ServiceSpecResolver
from farmd.deploy.spec import ContainerSpec, ServiceSpec
from farmd.runtime.clock import system_rng
from store import codec, manifests
from store.deployments import Deployment, Goal
from store.keys import Keys
from store.services import Revision, Service
from tests.deploying import kept, machines, stands, write
from tests.farmctl import Farmctl, put
from tests.people import hello

DIGEST = "3" * 64


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    return machines(address, "m1", "m2")


def spec(name: str = "web", tag: str = "2", **fields: Any) -> ServiceSpec:
    said = ServiceSpec(name=name, container=ContainerSpec(image=f"web:{tag}@sha256:{DIGEST}"), **fields)
    return ServiceSpecResolver(system_rng()).resolve(said)


def goal(farmctl: Farmctl) -> Goal:
    (found,) = kept(farmctl, "deployments", Deployment)
    (goal,) = found.goals
    return goal


def revision(farmctl: Farmctl, number: int, tag: str, result: Any = "done", reason: str = "") -> Revision:
    manifest, version = compiled(spec(tag=tag))
    body = manifests.canonical(manifest)
    put(farmctl, f"manifests/{version.manifest}", body.decode())
    return Revision(number=number, version=version, result=result, reason=reason, at=1.0, by="ada")


def test_scaling_deploys_what_was_released_with_another_count(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), "m1")
    found = farmctl.ok("service", "scale", "web", "2", "-y", "--no-wait")
    assert "    + run        on m2\n1 run" in found.err
    said = goal(farmctl)
    assert said.wanted is not None
    assert said.previous is not None
    assert (said.previous.replicas, said.wanted.replicas) == (1, 2)
    assert said.wanted.manifest == said.previous.manifest


def test_scaling_to_what_it_has_changes_nothing(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), "m1")
    assert farmctl.ok("service", "scale", "web", "1", "-y").out == "unchanged\n"
    assert kept(farmctl, "deployments", Deployment) == []


def test_a_global_service_has_no_count(farmctl: Farmctl) -> None:
    stands(farmctl, spec(mode="global"), "m1")
    found = farmctl("service", "scale", "web", "2", "-y")
    assert (found.code, "is global: it has a pod on each machine" in found.err) == (2, True)


def test_the_last_good_revision_comes_back(farmctl: Farmctl) -> None:
    history = [
        revision(farmctl, 4, "4", "reverted", "its check still fails"),
        revision(farmctl, 3, "2"),
        revision(farmctl, 2, "1"),
    ]
    stands(farmctl, spec(), "m1", history=history, released=3)
    farmctl.ok("service", "rollback", "web", "-y", "--no-wait")
    said = goal(farmctl)
    assert said.wanted is not None
    assert said.wanted == history[2].version


def test_a_revision_that_history_does_not_know_is_refused_with_those_that_it_knows(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), "m1", history=[revision(farmctl, 1, "2")])
    found = farmctl("service", "rollback", "web", "--to", "7", "-y")
    assert (found.code, "service 'web' has no revision 7, found: 1" in found.err) == (4, True)
    found = farmctl("service", "rollback", "web", "-y")
    assert (found.code, "has no good revision before 1, found: 1" in found.err) == (4, True)


def test_history_tells_each_revision_and_why_one_failed(farmctl: Farmctl) -> None:
    history = [revision(farmctl, 2, "3", "reverted", "its check still fails"), revision(farmctl, 1, "2")]
    stands(farmctl, spec(), "m1", history=history)
    lines = farmctl.ok("service", "history", "web").out.splitlines()
    assert lines[1].split()[:3] == ["2", "reverted", "1"]
    assert lines[1].endswith("its check still fails")
    assert lines[2].startswith("1 (now)")


def test_a_deployed_service_goes_by_a_deployment(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), "m1")
    refused = farmctl("service", "delete", "web")
    assert (refused.code, "- remove service web" in refused.err) == (2, True)
    farmctl.ok("service", "delete", "web", "-y", "--no-wait")
    assert goal(farmctl).wanted is None


def test_a_service_that_nothing_stands_of_is_deleted_at_once(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), released=0, active=[])
    assert farmctl.ok("service", "delete", "web", "-y").out.startswith("service/web deleted")


def test_a_service_that_a_deployment_is_about_to_make_is_not_deleted(farmctl: Farmctl) -> None:
    farmctl.ok("service", "run", "-n", "web", "-y", "--no-wait", f"web@sha256:{DIGEST}")
    found = farmctl("service", "delete", "web", "-y")
    assert (found.code, "service 'web' is changed by deployment/" in found.err) == (5, True)
    assert [each.name for each in kept(farmctl, "services", Service)] == ["web"]


@pytest.mark.parametrize("words", [("scale", "web", "3"), ("rollback", "web")])
def test_what_no_deployment_made_is_told_apart(farmctl: Farmctl, words: tuple[str, ...]) -> None:
    farmctl.ok("service", "create", "web", "--port", "http")
    found = farmctl("service", *words, "-y")
    assert found.code == 5
    assert "service 'web' is a name for the pods of no owner, which no deployment made" in found.err


def test_get_prints_the_file_that_apply_takes(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), "m1")
    text = farmctl.ok("get", "service", "web", "-o", "yaml").out
    assert text == farmctl.ok("service", "get", "web", "--file").out
    assert (yaml.safe_load(text)["kind"], yaml.safe_load(text)["name"]) == ("service", "web")
    planned = farmctl.ok("apply", "-f", "-", "--app", "shop", "--dry-run", "-o", "json", stdin=text).json
    assert [(act["act"], act["object"]) for act in planned["acts"]] == [("adopt", "service/web")]
    assert farmctl.ok("service", "get", "web", "-o", "json").json["name"] == "web"
    assert "web" in farmctl.ok("service", "get", "web").out
    farmctl.ok("service", "create", "front", "--port", "http")
    named = yaml.safe_load(farmctl.ok("service", "get", "front", "-o", "yaml").out)
    assert (named["name"], named["pods"], named["port"]) == ("front", [], "http")


def test_what_no_deployment_made_names_its_owners_as_people_do(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello(pod_ports={"http": {}})))
    farmctl.ok("service", "create", "web", "--port", "http", "rc/hello")
    found = farmctl("service", "rollback", "web", "-y")
    assert found.code == 5
    assert "service 'web' is a name for the pods of rc/hello, which no deployment made" in found.err


def test_run_deploys_an_image_with_its_command(farmctl: Farmctl) -> None:
    image = f"busybox@sha256:{DIGEST}"
    farmctl.ok(
        "service", "run", "-n", "box", "--replicas", "2", "-e", "A=b=c", "-p", "80:8080@host",
        "--volume", "data:/data:ro", "-y", "--no-wait", image, "sh", "-c", "sleep 1",
    )  # fmt: skip
    said = goal(farmctl)
    assert said.wanted is not None
    assert (said.name, said.wanted.replicas, said.wanted.on_lost) == ("box", 2, "wait")
    body = codec.decode(manifests.Manifest, farmctl_body(farmctl, said.wanted.manifest), "")
    assert body.command == ["sh", "-c", "sleep 1"]
    assert body.env == {"A": "b=c"}
    assert body.mounts[0].read_only


def farmctl_body(farmctl: Farmctl, sha: str) -> bytes:
    return dict(kept(farmctl, "manifests", None))[sha]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-e", "A"), "--env: found 'A', expected NAME=VALUE"),
        (("--volume", "data"), "--volume: found 'data', expected NAME:/PATH or NAME:/PATH:ro"),
        (("-p", "x"), "container port: found 'x'"),
        (("--replicas", "-1"), "Invalid value for '--replicas'"),
    ],
)
def test_what_cannot_run_is_refused(farmctl: Farmctl, words: tuple[str, ...], message: str) -> None:
    found = farmctl("service", "run", *words, "-y", "busybox")
    assert (found.code, message in found.err) == (2, True), found.err


def test_run_changes_no_service_that_exists(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), "m1")
    found = farmctl("service", "run", "-n", "web", "-y", "busybox")
    assert (found.code, "service 'web' exists" in found.err) == (5, True)


def test_list_and_describe_tell_what_was_deployed(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), "m1", deployment="0123456789abcdef")
    running = Deployment(id="0123456789abcdef", name="01234567", goals=[])
    write(farmctl, Keys(farmctl.prefix).record("deployments", running.id), running)
    line = farmctl.ok("service", "list").out.splitlines()[1]
    assert line.split()[:6] == ["web", "shop", "replicated", "0/1", "1", "01234567"]
    described = farmctl.ok("service", "describe", "web").out
    assert "Project:       shop\nMode:          replicated, 0 of 1 healthy\nRevision:      1\n" in described
    (found,) = farmctl.ok("service", "list", "-o", "json").json["items"]
    assert (found["deploying"], found["serving"], found["gone"]) == ("01234567", ["rc/svc-web"], [])


def test_describe_tells_what_deployments_made_of_a_service(farmctl: Farmctl) -> None:
    version = compiled(spec())[1]
    failed = Revision(
        number=2, version=version, deployment="fedcba9876543210", result="reverted", reason="m1/web~0: died"
    )
    released = Revision(number=1, version=version, by="user/ada")
    stands(farmctl, spec(), "m1", history=[failed, released])
    _, _, told = farmctl.ok("service", "describe", "web").out.partition("\n\nRevisions (newest first)\n")
    head, second, first = told.splitlines()
    assert head.split()[:2] == ["REVISION", "RESULT"]
    assert second.split()[:2] == ["2", "reverted"]
    assert second.endswith("fedcba98    m1/web~0: died")
    assert first.split()[:3] == ["1", "(now)", "done"]


def test_pods_and_explain_look_through_the_service_at_its_owner(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), "m1")
    assert "web~0" in farmctl.ok("service", "pods", "web").out
    assert "m2" in farmctl.ok("service", "explain", "web").out


def test_a_word_to_a_deployment_is_a_change_of_its_record(farmctl: Farmctl) -> None:
    stands(farmctl, spec(), "m1")
    farmctl.ok("service", "scale", "web", "2", "-y", "--no-wait")
    (first,) = kept(farmctl, "deployments", Deployment)
    assert f"{first.name}" in farmctl.ok("deployment", "list").out
    assert "web  waiting" in farmctl.ok("deployment", "status", first.name).out
    farmctl.ok("deployment", "pause", first.name)
    farmctl.ok("deployment", "resume", first.id)
    farmctl.ok("deployment", "rollback", first.name, "-y")
    (now,) = kept(farmctl, "deployments", Deployment)
    assert now == replace(first, ask="rollback", resumed=1)
    refused = farmctl("deployment", "rollback", "nothing", "-y")
    assert (refused.code, "deployment 'nothing' does not exist" in refused.err) == (4, True)


def test_a_deployment_that_is_over_is_told_so(farmctl: Farmctl) -> None:
    farmctl.ok("service", "create", "web", "--port", "http")
    put(
        farmctl, "audit/2026-01-01T00/00000000000-a",
        '{"at": 1, "actor": "farm/f1", "action": "deployment.reverted", "kind": "deployments",'
        ' "id": "0123456789abcdef", "name": "01234567"}',
    )  # fmt: skip
    for verb in ("status", "describe", "pause"):
        found = farmctl("deployment", verb, "01234567")
        assert found.code == 4
        assert "deployment '01234567' ended " in found.err
        assert " ago: reverted\nhint: farmctl audit list --kind deployment --item 01234567" in found.err
