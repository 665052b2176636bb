"""``farmctl deploy`` writes a deployment and joins its services: all of them, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from farmd.deploy.manifest import compiled
from farmd.deploy.resolver import ServiceSpecResolver
from farmd.deploy.spec import ContainerSpec, PortSpec, ServiceSpec
from farmd.runtime.clock import system_rng
from store.deployments import Deployment, DeploymentState, DeploymentStatus, Goal, GoalState
from store.keys import Keys
from store.services import Catalog, Service
from store.work import Work
from tests.deploying import kept, machines, stands, write
from tests.farmctl import Farmctl

ONE, TWO = "1" * 64, "2" * 64
SHOP = f"""
name: shop
services:
  db: {{image: "db@sha256:{ONE}", volumes: ["data:/data"]}}
  web:
    image: "web@sha256:{TWO}"
    deploy: {{replicas: 2}}
    depends_on: {{db: {{condition: service_healthy}}}}
volumes: {{data: }}
"""


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    return machines(address, "m1", "m2")


def file(folder: Path, text: str = SHOP) -> str:
    path = folder / "compose.yaml"
    path.write_text(text)
    return str(path)


def deployments(farmctl: Farmctl) -> list[Deployment]:
    return kept(farmctl, "deployments", Deployment)


def deployment(farmctl: Farmctl) -> Deployment:
    (found,) = kept(farmctl, "deployments", Deployment)
    return found


def services(farmctl: Farmctl) -> dict[str, Service]:
    return {each.name: each for each in kept(farmctl, "services", Service)}


def actions(farmctl: Farmctl) -> list[str]:
    items = farmctl.ok("audit", "list", "-o", "json").json["items"]
    return [each["action"] for each in items]


def submit(farmctl: Farmctl, path: str, *arguments: str) -> Deployment:
    farmctl.ok("deploy", "-f", path, "-y", "--no-wait", *arguments)
    return deployment(farmctl)


def plain(name: str, image: str = "x") -> ServiceSpec:
    spec = ServiceSpec(name=name, container=ContainerSpec(image=f"{image}@sha256:{'3' * 64}"))
    return ServiceSpecResolver(system_rng()).resolve(spec)


def house(spec: ServiceSpec) -> str:
    return f"kind: service\nname: {spec.name}\ncontainer: {{image: '{spec.container.image}'}}"


def test_a_deployment_and_its_services_are_written_in_one_transaction(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    found = submit(farmctl, file(tmp_path))
    joined = services(farmctl)
    assert {each.deployment for each in joined.values()} == {found.id}
    assert {(each.project, each.mode, each.version) for each in joined.values()} == {
        ("shop", "replicated", None)
    }
    assert not found.draft
    assert found.needs == ["deploy.1"]
    assert found.fingerprint
    goals = {goal.name: goal for goal in found.goals}
    assert {name: goal.service for name, goal in goals.items()} == {
        name: each.id for name, each in joined.items()
    }
    assert goals["web"].after == {"db": "healthy"}
    assert [goal.wanted.replicas for goal in found.goals if goal.wanted] == [1, 2]
    assert {goal.wanted.manifest for goal in found.goals if goal.wanted} <= dict(
        kept(farmctl, "manifests", None)
    ).keys()
    assert actions(farmctl) == ["deployment.create"]


def test_what_nobody_confirmed_is_not_written(farmctl: Farmctl, tmp_path: Path) -> None:
    found = farmctl("deploy", "-f", file(tmp_path))
    assert found.code == 2
    assert "there is no terminal to confirm it on" in found.err
    assert kept(farmctl, "deployments", None) == kept(farmctl, "services", None) == []


def test_who_deploys_second_is_told_the_holder_and_writes_nothing(farmctl: Farmctl, tmp_path: Path) -> None:
    first = submit(farmctl, file(tmp_path))
    status = DeploymentStatus(state="progressing", phase="rolling")
    write(farmctl, Keys(farmctl.prefix).status("deployments", first.id), status)
    found = farmctl("deploy", "-f", file(tmp_path, SHOP.replace("replicas: 2", "replicas: 3")), "-y", "-v")
    assert found.code == 5
    assert f"service 'db' is changed by deployment {first.name} of {first.by} since 20" in found.err
    assert "rolling" in found.err
    assert f'holder: "deployments/{first.id}"' in found.err
    assert "update service" not in found.err, "a plan that nobody may carry out"
    rehearsed = farmctl.ok("deploy", "-f", file(tmp_path), "--dry-run").out
    assert f"! web is changed by deployment {first.name}" in rehearsed
    assert deployment(farmctl) == first


def test_a_service_of_a_deployment_that_is_gone_is_free(farmctl: Farmctl, tmp_path: Path) -> None:
    stands(farmctl, plain("web"), "m1", deployment="0123456789abcdef")
    found = submit(farmctl, file(tmp_path), "web")
    assert services(farmctl)["web"].deployment == found.id


def test_a_paused_deployment_hands_a_service_over(farmctl: Farmctl, tmp_path: Path) -> None:
    keys = Keys(farmctl.prefix)
    stands(farmctl, plain("web"), "m1", deployment="0123456789abcdef")
    before = services(farmctl)["web"]
    goal = Goal(service=before.id, name="web", owner=before.active[0], wanted=before.version)
    old = Deployment(id="0123456789abcdef", name="01234567", goals=[goal], project="shop", ask="pause")
    write(farmctl, keys.record("deployments", old.id), old)
    found = farmctl.ok("deploy", "-f", file(tmp_path), "-y", "--no-wait", "web")
    assert "! takes web over from deployment 01234567" in found.err
    by_id = {each.id: each for each in kept(farmctl, "deployments", Deployment)}
    new = next(each for each in by_id.values() if each.id != old.id)
    assert by_id[old.id].goals[0].superseded == new.id
    web = next(each for each in new.goals if each.name == "web")
    assert (web.previous, web.owner) == (before.version, before.active[0])


def test_a_running_deployment_is_taken_over_by_force_with_a_reason(farmctl: Farmctl, tmp_path: Path) -> None:
    first = submit(farmctl, file(tmp_path))
    other = file(tmp_path, SHOP.replace("replicas: 2", "replicas: 3"))
    refused = farmctl("deploy", "-f", other, "-y", "--no-wait", "--force")
    assert (refused.code, "reason: missing" in refused.err) == (2, True)
    farmctl.ok("deploy", "-f", other, "-y", "--no-wait", "--force", "--reason", "stuck")
    by_id = {each.id: each for each in kept(farmctl, "deployments", Deployment)}
    (new,) = by_id.keys() - {first.id}
    assert {goal.superseded for goal in by_id[first.id].goals} == {new}


def test_a_running_deployment_is_superseded_where_that_is_asked_for(farmctl: Farmctl, tmp_path: Path) -> None:
    first = submit(farmctl, file(tmp_path))
    other = file(tmp_path, SHOP.replace("replicas: 2", "replicas: 3"))
    refused = farmctl("deploy", "-f", other, "-y", "--no-wait")
    assert (refused.code, "--supersede takes it over" in refused.err) == (5, True)
    assert deployment(farmctl) == first
    done = farmctl.ok("deploy", "-f", other, "-y", "--no-wait", "--supersede")
    assert f"! takes web over from deployment {first.name}" in done.err
    by_id = {each.id: each for each in kept(farmctl, "deployments", Deployment)}
    (new,) = by_id.keys() - {first.id}
    assert {goal.superseded for goal in by_id[first.id].goals} == {new}
    assert {each.deployment for each in services(farmctl).values()} == {new}


def test_an_app_supersedes_the_deployment_of_its_service(farmctl: Farmctl, tmp_path: Path) -> None:
    stands(farmctl, plain("web"), "m1", project="", part_of="apps/shop")
    apply = ("apply", "-f", "-", "--app", "shop", "-y", "--no-wait")
    head = "apiVersion: farmd/v1\n"
    farmctl.ok(*apply, stdin=head + house(plain("web")))
    before = services(farmctl)["web"]
    keys, (manifest, wanted) = Keys(farmctl.prefix), compiled(plain("web", "bad"))
    write(farmctl, keys.manifest(wanted.manifest), manifest)
    goal = Goal(service=before.id, name="web", owner=before.active[0], wanted=wanted, previous=before.version)
    old = Deployment(id="0123456789abcdef", name="01234567", goals=[goal])
    write(farmctl, keys.record("deployments", old.id), old)
    write(farmctl, keys.record("services", before.id), replace(before, deployment=old.id))

    fix = head + house(plain("web", "fix"))
    waits = farmctl.ok(*apply, "--dry-run", stdin=fix).out
    assert "waits: service/web: changed by deployment/01234567; --supersede puts this version" in waits
    same = farmctl.ok(*apply, "--supersede", "--dry-run", stdin=head + house(plain("web", "bad"))).out
    assert "waits: service/web: changed by deployment/01234567\n" in same
    done = farmctl.ok(*apply, "--supersede", stdin=fix)
    assert "takes web over from deployment 01234567" in done.err
    by_id = {each.id: each for each in kept(farmctl, "deployments", Deployment)}
    (new,) = by_id.keys() - {old.id}
    assert by_id[old.id].goals[0].superseded == new
    (aim,) = by_id[new].goals
    assert aim.wanted is not None
    assert (aim.wanted.image, aim.previous) == (f"fix@sha256:{'3' * 64}", before.version)
    now = services(farmctl)["web"]
    assert (now.deployment, now.part_of) == (new, "apps/shop")
    assert farmctl.ok(*apply, "--supersede", stdin=fix).out == "app/shop unchanged\n"


def test_halted_after_a_failure_is_as_good_as_paused(farmctl: Farmctl, tmp_path: Path) -> None:
    first = submit(farmctl, file(tmp_path))
    state = DeploymentState(
        begun=True,
        halted="web failed",
        goals={each.service: GoalState(phase="taken") for each in first.goals},
    )
    write(farmctl, Keys(farmctl.prefix).work("deployments", first.id), Work(deployment=state))
    submit_again = farmctl(
        "deploy", "-f", file(tmp_path, SHOP.replace("replicas: 2", "replicas: 3")), "-y", "--no-wait"
    )
    assert submit_again.code == 0
    assert "halted: web failed" in submit_again.err


def test_services_that_left_the_file_are_named_and_removed_only_when_asked(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    stands(farmctl, plain("old"), "m1")
    listed = farmctl.ok("deploy", "-f", file(tmp_path), "--dry-run").out
    assert "! not in the files: old; --prune removes them" in listed
    pruned = farmctl.ok("deploy", "-f", file(tmp_path), "--dry-run", "--prune").out
    assert "- remove service old\n    - remove     old~0 on m1\n" in pruned
    goals = {goal.name: goal.wanted for goal in submit(farmctl, file(tmp_path), "--prune").goals}
    assert goals["old"] is None
    assert len(goals) == 3


def test_a_service_behind_another_profile_has_not_left_the_file(farmctl: Farmctl, tmp_path: Path) -> None:
    stands(farmctl, plain("debug"), "m1")
    text = SHOP.replace("volumes: {data", "  debug: {image: x, profiles: [debug]}\nvolumes: {data")
    assert "not in the files" not in farmctl.ok("deploy", "-f", file(tmp_path, text), "--dry-run").out


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"project": "blog"}, "services.web: belongs to project blog; rename it, or set x-farmd.prefix"),
        ({"project": ""}, "services.web: belongs to no project; rename it, or set x-farmd.prefix"),
    ],
)
def test_a_service_of_another_project_is_never_taken_over(
    farmctl: Farmctl, tmp_path: Path, fields: dict[str, str], message: str
) -> None:
    stands(farmctl, plain("web"), "m1", **fields)
    found = farmctl("deploy", "-f", file(tmp_path), "-y")
    assert (found.code, message in found.err) == (5, True)
    assert kept(farmctl, "deployments", None) == []


def test_a_service_keeps_its_mode(farmctl: Farmctl, tmp_path: Path) -> None:
    stands(farmctl, replace(plain("web"), mode="global"), "m1")
    found = farmctl("deploy", "-f", file(tmp_path), "-y")
    assert found.code == 5
    assert "services.web: mode: found 'replicated', expected 'global'" in found.err


def test_settings_that_no_pod_knows_are_changed_without_a_pod(farmctl: Farmctl, tmp_path: Path) -> None:
    spec = plain("web")
    stands(farmctl, spec, "m1", project="")
    text = f"{house(spec)}\nupdate: {{parallelism: 4}}"
    found = farmctl.ok("deploy", "-f", file(tmp_path, text), "-y", "--no-wait")
    assert "    settings     update\nother settings of 1 service\n" in found.err
    (goal,) = deployment(farmctl).goals
    assert goal.wanted is not None
    assert goal.previous is not None
    assert (goal.wanted.update.parallelism, goal.wanted.manifest) == (4, goal.previous.manifest)


def test_a_file_that_says_how_consul_finds_a_service_changes_no_pod(farmctl: Farmctl, tmp_path: Path) -> None:
    spec = replace(plain("web"), ports=[PortSpec(container=80)])
    stands(farmctl, spec, "m1", project="", port="tcp-80")
    text = f"{house(spec)}\nports: [80]\n"
    found = farmctl.ok("deploy", "-f", file(tmp_path, f"{text}catalog: {{tags: [edge]}}"), "-y", "--no-wait")
    assert "    settings     catalog\nweb: in Consul's DNS as web.service.consul\n" in found.err
    assert "other settings of 1 service\n" in found.err
    (goal,) = deployment(farmctl).goals
    assert goal.wanted is not None
    assert goal.previous is not None
    assert (goal.wanted.catalog, goal.wanted.manifest) == (Catalog(tags=["edge"]), goal.previous.manifest)
    assert deployment(farmctl).needs == ["deploy.1", "deploy.catalog"]


def test_a_command_changes_what_the_file_said_and_the_next_deployment_shows_it(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    said = Catalog(tags=["edge"])
    spec = replace(plain("web"), ports=[PortSpec(container=80)], catalog=said)
    stands(farmctl, spec, "m1", project="", port="tcp-80", catalog=said)
    path = file(tmp_path, f"{house(spec)}\nports: [80]\ncatalog: {{tags: [edge]}}")
    assert "all services are as they should be" in farmctl.ok("deploy", "-f", path, "-y").err
    farmctl.ok("service", "catalog", "web", "--off")
    assert services(farmctl)["web"].catalog is None
    (goal,) = submit(farmctl, path).goals
    assert goal.wanted is not None
    assert goal.wanted.catalog == said


def test_a_service_is_changed_in_an_editor(
    farmctl: Farmctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(plain("web"), ports=[PortSpec(container=80)])
    stands(farmctl, spec, "m1", project="", port="tcp-80")
    command = ["service", "edit", "web", "-y", "--no-wait"]
    monkeypatch.setenv("EDITOR", "true")
    assert "service/web: nothing was changed" in farmctl.ok(*command).err
    monkeypatch.setenv("EDITOR", r"sed -i 's/^name: web$/name: other/'")
    assert "found 'other', expected 'web'" in farmctl(*command).err
    assert deployments(farmctl) == []
    monkeypatch.setenv("EDITOR", r"sed -i '$a catalog: {tags: [edge]}'")
    assert "    settings     catalog\n" in farmctl.ok(*command).err
    (goal,) = deployment(farmctl).goals
    assert goal.wanted is not None
    assert goal.wanted.catalog == Catalog(tags=["edge"])


def test_equal_pods_keep_their_manifest(farmctl: Farmctl, tmp_path: Path) -> None:
    spec = plain("web")
    stands(farmctl, replace(spec, container=replace(spec.container, pull="never")), "m1", project="")
    text = f"{house(spec)}\nreplicas: 2"
    (goal,) = submit(farmctl, file(tmp_path, text)).goals
    assert goal.wanted is not None
    assert goal.previous is not None
    assert goal.wanted.manifest == goal.previous.manifest


def test_two_hundred_services_join_in_batches(farmctl: Farmctl, tmp_path: Path) -> None:
    found = submit(farmctl, file(tmp_path, many(200)))
    joined = services(farmctl)
    assert len(found.goals) == len(joined) == 200
    assert not found.draft
    assert {each.deployment for each in joined.values()} == {found.id}
    first, *joins, last = reversed(actions(farmctl))
    assert (first, last) == ("deployment.draft", "deployment.create")
    assert set(joins) == {"deployment.join"}  # each batch has its audit record


def test_a_draft_that_cannot_be_completed_is_taken_back(farmctl: Farmctl, tmp_path: Path) -> None:
    """A service that another deployment joins meanwhile: here one whose name belongs to a broken record."""
    write(farmctl, Keys(farmctl.prefix).name("services", "s150"), "feedfeedfeedfeed")
    found = farmctl("deploy", "-f", file(tmp_path, many(200)), "-y", "--no-wait")
    assert found.code == 5
    assert kept(farmctl, "deployments", None) == []
    assert kept(farmctl, "services", None) == []
    assert dict(kept(farmctl, "names/services", None)).keys() == {"s150"}
    assert actions(farmctl)[0] == "deployment.abandoned"


def test_more_services_than_fit_into_one_transaction_are_taken_over_at_once(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    first = submit(farmctl, file(tmp_path, many(120)))
    joined = services(farmctl)
    farmctl.ok("deployment", "pause", first.name)
    farmctl.ok("deploy", "-f", file(tmp_path, many(150, "4")), "-y", "--no-wait")
    by_id = {each.id: each for each in kept(farmctl, "deployments", Deployment)}
    (new,) = by_id.keys() - {first.id}
    assert not by_id[new].draft
    assert {goal.superseded for goal in by_id[first.id].goals} == {new}
    holders = {name: each.deployment for name, each in services(farmctl).items()}
    assert holders == {name: first.id if name in joined else new for name in holders}
    assert len(holders) == 150
    manifests = {goal.wanted.manifest for goal in by_id[new].goals if goal.wanted}
    assert manifests <= dict(kept(farmctl, "manifests", None)).keys()
    third = farmctl("deploy", "-f", file(tmp_path, many(1)), "-y", "--no-wait")
    assert (third.code, f"is changed by deployment {new[:8]}" in third.err) == (5, True), third.err


def test_a_take_over_that_cannot_be_completed_takes_nothing(farmctl: Farmctl, tmp_path: Path) -> None:
    first = submit(farmctl, file(tmp_path, many(120)))
    farmctl.ok("deployment", "pause", first.name)
    before = services(farmctl)
    write(farmctl, Keys(farmctl.prefix).name("services", "s140"), "feedfeedfeedfeed")
    found = farmctl("deploy", "-f", file(tmp_path, many(150, "4")), "-y", "--no-wait")
    assert found.code == 5
    assert services(farmctl) == before
    (record,) = kept(farmctl, "deployments", Deployment)
    assert {goal.superseded for goal in record.goals} == {""}


def many(count: int, version: str = "3") -> str:
    image = f"x@sha256:{version * 64}"
    return "---\n".join(
        f"kind: service\nname: s{number}\ncontainer: {{image: '{image}'}}\n" for number in range(count)
    )


def test_output_for_programs(farmctl: Farmctl, tmp_path: Path) -> None:
    found = farmctl.ok("deploy", "-f", file(tmp_path), "-y", "--no-wait", "-o", "json").json
    assert (found["kind"], found["outcome"], found["name"]) == (
        "Deployment", "submitted", deployment(farmctl).name,
    )  # fmt: skip
    assert [each["name"] for each in found["plan"]["services"]] == ["db", "web"]
