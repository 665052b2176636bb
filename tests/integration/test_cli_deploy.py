"""``farmctl deploy --dry-run``: the plan of a compose file, made from what stands in the store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from farmd.compose.disk import Disk
from farmd.compose.project import read
from farmd.deploy.resolver import ServiceSpecResolver
from farmd.deploy.spec import Placement, ServiceSpec
from store.deployments import PROJECT_LABEL
from store.images import parse
from store.keys import Keys
from store.manifests import PodAffinity
from store.nodes import Node, NodeVolume
from tests.deploying import machines, stands, write
from tests.farmctl import Farmctl
from tests.registry import Registry

SHOP = """
name: shop
services:
  db:
    image: postgres:16
    volumes: [data:/var/lib/postgresql/data]
    x-machines: m2
  web:
    image: registry.example/web:1.5
    environment: {LOG_LEVEL: debug, SECRET: hidden}
    ports: ["80:8080"]
    x-pre_deploy: rails db:migrate
    depends_on: {db: {condition: service_healthy}}
    deploy: {replicas: 3}
volumes: {data: }
"""
MACHINES = ("m1", "m2", "m3")


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    """Three machines that run containers."""
    return machines(address, *MACHINES)


def file(folder: Path, text: str = SHOP) -> str:
    path = folder / "compose.yaml"
    path.write_text(text)
    return str(path)


def resolved(path: str, name: str) -> ServiceSpec:
    found = read([path], Disk(lambda each: Path(each).read_text()), {}).services[name]
    return ServiceSpecResolver(random.Random(1)).resolve(found)


def unpinned(image: str) -> str:
    """What is said of an image whose registry cannot be reached."""
    why = f"{parse(image).registry} cannot be asked: Connect call failed ('127.0.0.1', 1)"
    return f"warning: {image}: not pinned to a digest: {why}"


def plan(farmctl: Farmctl, *arguments: str) -> list[str]:
    return farmctl.ok("deploy", "--dry-run", *arguments).out.splitlines()


def test_a_first_deployment_is_shown_machine_by_machine(farmctl: Farmctl, tmp_path: Path) -> None:
    assert plan(farmctl, "-f", file(tmp_path)) == [
        "project shop: 2 services on 3 machines",
        "+ create volume shop_data on m2",
        "+ create service db (1)  postgres:16",
        "    + run        on m2",
        "+ create service web (3)  registry.example/web:1.5",
        "    hook         rails db:migrate on m1, at most 5m",
        "    + run        on m1, on m3, on m2",
        "! web needs db, which is not on all of its machines: names work on one alone",
        "1 volume, 1 hook, 4 runs",
    ]


def test_a_new_service_of_the_catalogue_is_shown_with_its_name_in_dns(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    text = "services: {web: {image: 'web:1', x-ports: ['80'], x-consul: {name: pay}}}"
    assert "web: in Consul's DNS as pay.service.consul" in plan(farmctl, "-f", file(tmp_path, text))


def test_a_change_names_what_is_other_and_no_value_of_the_environment(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    path = file(tmp_path)
    db, web = resolved(path, "db"), resolved(path, "web")
    environment = {"LOG_LEVEL": "info", "SECRET": "other"}
    before = replace(web, container=replace(web.container, image="registry.example/web:1.4", env=environment))
    write(farmctl, Keys(farmctl.prefix).node("m2"), Node(volumes={"shop_data": NodeVolume()}))
    stands(farmctl, db, "m2")
    stands(farmctl, before, "m1", "m2", "m3", sick="m3")
    found = farmctl("deploy", "--dry-run", "--detailed-exitcode", "-f", path)
    assert found.code == 3
    assert found.err.splitlines() == [unpinned("postgres:16"), unpinned("registry.example/web:1.5")]
    assert found.out.splitlines() == [
        "project shop: 2 services on 3 machines",
        "~ update service web (3)  registry.example/web:1.4 -> :1.5; env: changes LOG_LEVEL, SECRET",
        "    hook         rails db:migrate on m3, at most 5m",
        "    -/+ replace  web~0 on m3, web~0 on m1, web~0 on m2"
        "   stop-first: one port for both, 80:8080/tcp@host",
        "! web needs db, which is not on all of its machines: names work on one alone",
        "1 hook, 3 replacements",
    ]


def test_what_is_deployed_leaves_nothing_to_do(farmctl: Farmctl, tmp_path: Path) -> None:
    path = file(tmp_path)
    write(farmctl, Keys(farmctl.prefix).node("m2"), Node(volumes={"shop_data": NodeVolume()}))
    stands(farmctl, resolved(path, "db"), "m2")
    stands(farmctl, resolved(path, "web"), "m1", "m2", "m3")
    assert plan(farmctl, "-f", path, "--detailed-exitcode")[-1] == "all services are as they should be"
    document = farmctl.ok("deploy", "--dry-run", "-f", path, "-o", "json").json
    assert (document["kind"], document["empty"]) == ("DeploymentPlan", True)
    again = farmctl.ok("deploy", "--dry-run", "--recreate", "-f", path, "db", "-o", "json").json
    assert [each["operations"] for each in again["services"]] == [
        [{"operation": "replacement", "machine": "m2", "instance": "db~0", "order": "stop-first",
          "why": "one volume for both, shop_data"}]
    ]  # fmt: skip


def test_a_volume_on_a_machine_that_is_absent_is_not_made_anew(farmctl: Farmctl, tmp_path: Path) -> None:
    write(farmctl, Keys(farmctl.prefix).node("gone"), Node(volumes={"shop_data": NodeVolume()}))
    found = farmctl("deploy", "--dry-run", "-f", file(tmp_path))
    assert found.code == 5
    assert "services.db: volume shop_data is on gone alone, where the service cannot be" in found.err


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("services: {web: {imgae: x}}", 2, "services.web.imgae: unknown key, did you mean 'image'?"),
        ("services: {web: {image: x, x-machines: m9}}", 5, "m1 and 2 more: needs node in (m9)"),
        (
            "services: {web: {image: x, privileged: true}}",
            5,
            "m1 and 2 more: the node's agent does not allow 'privileged'",
        ),
        (
            "services: {web: {image: '${V:?tell the version}'}}",
            2,
            "variable V has no value: tell the version",
        ),
    ],
)
def test_what_cannot_be_deployed_is_refused_in_one_line(
    farmctl: Farmctl, tmp_path: Path, text: str, code: int, message: str
) -> None:
    found = farmctl("deploy", "--dry-run", "-f", file(tmp_path, text))
    assert (found.code, found.out) == (code, "")
    assert message in found.err
    assert len(found.err.splitlines()) == 1


def test_without_a_question_no_wait_begins_for_pods_that_find_no_machine(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    text = "services: {web: {image: 'registry.example/web:1', ports: ['80:80'], deploy: {replicas: 4}}}"
    path = file(tmp_path, f"name: shop\n{text}\n")
    refused = farmctl("deploy", "-f", path, "-y")
    assert refused.code == 5
    assert "service web: 1 of 4 pods find no machine" in refused.err
    assert "--no-wait" in refused.err
    assert farmctl.ok("deployment", "list", "-o", "name").out == ""
    farmctl.ok("deploy", "-f", path, "-y", "--no-wait")


def test_one_service_of_a_project_that_stands_together_stays_with_the_others(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    path = file(tmp_path, "{name: shop, services: {db: {image: x}, web: {image: x}}}")
    near = PodAffinity(f"{PROJECT_LABEL}=shop")
    bound = {"placement": Placement(pod_affinity=[near]), "on_lost": "replace"}
    stands(farmctl, replace(resolved(path, "db"), **bound), "m2")
    assert "    + run        on m2" in plan(farmctl, "-f", path, "web")
    stands(farmctl, replace(resolved(path, "web"), **bound), "m2")
    assert plan(farmctl, "-f", path, "web")[-1] == "all services are as they should be"


def test_variables_of_the_folder_and_warnings(farmctl: Farmctl, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TAG=7\nMORE=$NOT\n")
    path = file(tmp_path, "services: {web: {image: 'x:${TAG}', container_name: y, hostname: '${NONE}'}}")
    found = farmctl.ok("deploy", "--dry-run", "-f", path, "-p", "blog")
    assert found.out.splitlines()[:2] == [
        "project blog: 1 service on 3 machines", "+ create service web (1)  x:7",
    ]  # fmt: skip
    assert found.err.splitlines() == [
        f"warning: {tmp_path}/.env: line 2: variable NOT is not set, so it is empty",
        f"warning: {path}: line 1: services.web.hostname: variable NONE is not set, so it is empty",
        "warning: services.web.container_name is ignored: pods are named after their service",
        unpinned("x:7"),
    ]


def test_a_service_of_other_owners_is_not_taken_over(farmctl: Farmctl, tmp_path: Path) -> None:
    farmctl.ok("service", "create", "db", "--port", "http")
    found = farmctl("deploy", "--dry-run", "-f", file(tmp_path))
    assert found.code == 5
    assert "services.db: service/db serves for other owners; rename this one" in found.err


WEB = """
kind: service
name: web
replicas: 3
container:
  image: registry.example/web:1.5
  env: {LOG_LEVEL: debug}
  health: {type: http, port: tcp-8080, path: /healthz}
  resources: {cpu: 500m, memory: 256Mi}
ports: [80:8080@host]
update: {parallelism: 2, monitor: 10s}
---
kind: service
name: proxy
mode: global
container: {image: proxy}
"""


def test_a_file_of_the_house_is_planned_like_a_compose_file(farmctl: Farmctl, tmp_path: Path) -> None:
    assert plan(farmctl, "-f", file(tmp_path, WEB)) == [
        "files: 2 services on 3 machines",
        "+ create service proxy (global)  proxy",
        "    + run        on m1, on m2, on m3",
        "+ create service web (3)  registry.example/web:1.5",
        "    + run        on m1, on m2, on m3",
        "6 runs",
    ]
    assert plan(farmctl, "-f", file(tmp_path, WEB), "web")[-1] == "3 runs"
    refused = farmctl("deploy", "--dry-run", "-f", file(tmp_path, WEB), "-p", "Big Shop")
    assert (refused.code, "project's name: found 'Big Shop', expected" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kind: service\nname: a\ncontainer: {imgae: x}",
            "container.imgae: unknown key, did you mean 'image'?",
        ),
        ("kind: service\ncontainer: {image: x}", "name: missing, expected the name of the service"),
        (
            "kind: service\nname: a\ncontainer: {image: x}\nports: ['80:80']",
            "expected 80:80@host, on each machine",
        ),
        ("kind: service\nname: a\ncontainer: {image: x}\nports: [x]", "ports[0]: container port: found 'x'"),
        (
            "kind: service\nname: a\ncontainer: {image: x}\n---\nkind: rc",
            "kind: found 'rc', expected 'service'",
        ),
        (WEB + "---\nkind: service\nname: web\ncontainer: {image: x}", "name: found 'web' again"),
    ],
)
def test_a_broken_file_of_the_house_is_refused_in_one_line(
    farmctl: Farmctl, tmp_path: Path, text: str, message: str
) -> None:
    found = farmctl("deploy", "--dry-run", "-f", file(tmp_path, text))
    assert (found.code, found.out) == (2, "")
    assert message in found.err
    assert len(found.err.splitlines()) == 1


def test_files_come_from_stdin_as_from_a_folder(farmctl: Farmctl) -> None:
    told = farmctl.ok("deploy", "--dry-run", "-f", "-", stdin=SHOP).out
    assert told.startswith("project shop: 2 services")


def test_a_plan_names_the_image_that_the_registry_serves_now(farmctl: Farmctl, tmp_path: Path) -> None:
    with Registry(tmp_path) as registry:
        image, digest = f"{registry.host}/web:1", registry.push("web", "1", b"old")
        path = file(tmp_path, f"{{name: blog, services: {{web: {{image: '{image}'}}}}}}")
        found = farmctl.ok("deploy", "--dry-run", "-f", path)
        assert (found.out.splitlines()[1], found.err) == (
            f"+ create service web (1)  {image}@{digest[:15]}", "",
        )  # fmt: skip
        spec = resolved(path, "web")
        runs = replace(spec.container, image=f"{image}@{digest}")
        stands(farmctl, replace(spec, container=runs), "m1", project="blog")
        found = farmctl.ok("deploy", "--dry-run", "-f", path)
        assert "all services are as they should be" in found.out
        moved = registry.push("web", "1", b"new")
        found = farmctl.ok("deploy", "--dry-run", "-f", path)
        assert f"{image} ({digest[:15]} -> {moved[7:15]})" in found.out
    found = farmctl.ok("deploy", "--dry-run", "-f", path)
    assert "all services are as they should be" in found.out
    assert (
        f"warning: {image}: stays at the digest that runs now: {registry.host} cannot be asked" in found.err
    )
