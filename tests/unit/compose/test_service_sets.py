"""The services of a compose project together: extends, profiles, order, names and warnings."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.compose.project import read
from store.errors import InputInvalid
from tests.unit.compose.disk import Disk, project


def test_extends_takes_what_another_service_says() -> None:
    found = project(
        """
        services:
          base: {image: a, environment: {A: 1, B: 1}, command: [x], ports: [80]}
          web:
            extends: base
            environment: {B: 2}
            ports: [81]
          far: {extends: {file: lib/common.yaml, service: far}, command: [y]}
        """,
        files={
            "lib/common.yaml": "services: {far: {extends: root, env_file: f.env}, root: {image: b}}",
            "lib/f.env": "X=1",
        },
    ).services
    web, far = found["web"].container, found["far"].container
    assert (web.image, web.env, web.command) == ("a", {"A": "1", "B": "2"}, ["x"])
    assert [port.container for port in found["web"].ports] == [80, 81]
    assert (far.image, far.env, far.command) == ("b", {"X": "1"}, ["y"])


PROFILES = """
services:
  web: {image: a, depends_on: {db: {condition: service_healthy}}}
  db: {image: a}
  debug: {image: a, profiles: [dev], depends_on: {seed: {condition: service_completed_successfully}}}
  seed: {image: a, profiles: [dev, seed], restart: "no"}
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["db", "web"]),
        ({"profiles": ["dev"]}, ["db", "debug", "seed", "web"]),
        ({"profiles": ["*"]}, ["db", "debug", "seed", "web"]),
        ({"services": ["debug"]}, ["debug", "seed"]),
        ({"services": ["web"]}, ["db", "web"]),
    ],
)
def test_profiles_and_named_services(options: dict[str, Any], expected: list[str]) -> None:
    assert sorted(project(PROFILES, **options).services) == expected


JOB = (
    "services: {a: {image: x, depends_on: {b: {condition: service_completed_successfully}}}, b: {image: y%s}}"
)


@pytest.mark.parametrize(
    ("keys", "policy"),
    [
        ("", "never"),
        (", restart: on-failure", "on-failure"),
        (", deploy: {restart_policy: {condition: none}}", "never"),
    ],
)
def test_what_another_service_waits_to_complete_is_not_started_again(keys: str, policy: str) -> None:
    found = project(JOB % keys).services
    assert (found["b"].container.restart.policy, found["a"].container.restart.policy) == (policy, "always")


@pytest.mark.parametrize("keys", ["restart: always", "deploy: {restart_policy: {condition: any}}"])
def test_what_never_ends_cannot_be_waited_for(keys: str) -> None:
    expected = (
        r"services\.b\.restart: found 'always', expected no or on-failure: a waits until it has completed"
    )
    with pytest.raises(InputInvalid, match=expected):
        project(JOB % f", {keys}")


def test_what_comes_before_a_service_and_what_it_must_be() -> None:
    assert project(PROFILES, profiles=["dev"]).after == {
        "web": {"db": "healthy"},
        "db": {},
        "debug": {"seed": "completed"},
        "seed": {},
    }


@pytest.mark.parametrize(
    ("text", "together"),
    [
        ("services: {a: {image: x}, b: {image: x}}", True),
        ("services: {a: {image: x}}", False),
        ("services: {a: {image: x, scale: 2}, b: {image: x}}", False),
        ("services: {a: {image: x, deploy: {mode: global}}, b: {image: x}}", False),
        ("services: {a: {image: x}, b: {image: x}}\nx-farmd: {together: false}", False),
    ],
)
def test_a_project_of_single_pods_stands_together(text: str, together: bool) -> None:
    assert project(text).together == together


def test_the_projects_name_is_said_or_that_of_the_folder() -> None:
    text = "services: {a: {image: x}}"
    assert project(text, name="").name == "shop"
    assert project(f"name: other\n{text}", name="").name == "other"
    assert project(f"name: other\n{text}", name="", env={"COMPOSE_PROJECT_NAME": "env"}).name == "env"
    assert project(f"name: other\n{text}", name="flag").name == "flag"
    named = read(["My_App.v2/c.yaml"], Disk({"My_App.v2/c.yaml": text}), {})
    assert named.name == "my_appv2"


def test_values_know_the_projects_name() -> None:
    text = "services: {a: {image: x, volumes: ['d:/d']}}\nvolumes: {d: {name: '${COMPOSE_PROJECT_NAME}_d'}}"
    found = project(f"name: ${{NAME}}\n{text}", name="", env={"NAME": "shop"})
    assert [each.volume_name for each in found.services["a"].mounted()] == ["shop_d"]


def test_names_that_compose_takes_are_names_here_and_between_containers() -> None:
    found = project("services: {My_db.v2: {image: x}, web: {image: x, depends_on: [My_db.v2]}}")
    assert found.after == {"my-db-v2": {}, "web": {"my-db-v2": "started"}}
    assert found.services["my-db-v2"].container.networks == {"shop_default": ["My_db.v2"]}
    assert found.warnings == (
        "services.My_db.v2: becomes service my-db-v2: names have only a-z, 0-9 and '-'",
    )


def test_a_name_that_cannot_be_is_not_laid_to_the_file() -> None:
    with pytest.raises(InputInvalid, match=r"^project's name: found 'A B', expected 1 to 63"):
        project("name: other\nservices: {a: {image: x}}", name="A B")


def test_a_profile_that_no_service_has_is_warned_of() -> None:
    assert project(PROFILES, profiles=["dev", "*"]).warnings == ()
    assert project(PROFILES, profiles=["dve"]).warnings == ("no service has the profile 'dve'",)


def test_a_prefix_keeps_the_services_of_two_projects_apart() -> None:
    found = project("services: {a: {image: x, depends_on: [b]}, b: {image: x}}\nx-farmd: {prefix: blog-}")
    assert found.after == {"blog-a": {"blog-b": "started"}, "blog-b": {}}
    assert found.services["blog-a"].container.networks == {"shop_default": ["a"]}


FAR = "services:\n  web:\n    extends: {file: lib/common.yaml, service: far}\n    command: [y]\n"


def test_an_unset_variable_is_warned_of_in_the_file_that_names_it() -> None:
    found = project(FAR, files={"lib/common.yaml": "services:\n  far:\n    image: x\n    user: $ID\n"})
    assert found.warnings == (
        "shop/lib/common.yaml: line 4: services.far.user: variable ID is not set, so it is empty",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "services:\n  far:\n    image: x\n    ports: ['80:x']\n",
            "line 4: services.web.ports[0].target: found 'x'",
        ),
        ("services:\n  far:\n    image: x\n    bogus: 1\n", "line 4: services.web.bogus: unknown key"),
        ("services:\n  far:\n    image: [\n", "not YAML: "),
        ("services:\n  far:\n    image: ${A:?}\n", "line 3: services.far.image: variable A has no value"),
    ],
)
def test_an_error_in_an_extended_service_names_the_file_and_the_line_that_have_it(
    text: str, message: str
) -> None:
    with pytest.raises(InputInvalid) as refused:
        project(FAR, files={"lib/common.yaml": text})
    assert refused.value.message.startswith(f"shop/lib/common.yaml: {message}")


def test_unset_variables_are_warned_of_once() -> None:
    found = project("services: {a: {image: 'x:${TAG}1', hostname: 'h${TAG}'}}")
    assert found.warnings == (
        "shop/0.yaml: line 1: services.a.image: variable TAG is not set, so it is empty",
    )
