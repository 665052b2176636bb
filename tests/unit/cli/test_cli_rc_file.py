"""RC files: what is refused names file, field, found and expected; what is accepted comes back as a file."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from farmd.replication.commands import RC
from store import manifests
from store.errors import InputInvalid
from tests.people import hello

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"replica": 3}, "replica: unknown key, did you mean 'replicas'"),
        ({"image": "nginx"}, "image: unknown key, expected one of disabled"),
        ({"pod_image": "nginx"}, "pod.image: unknown key, did you mean 'container.image'?"),
        ({"command": ["a"]}, "command: unknown key, did you mean 'pod.command'?"),
        ({"pod_port": 80}, "pod.port: unknown key, did you mean 'ports'?"),
        ({"pod_resources": {"memory": "64m"}}, "pod.resources.memory: found 0.064, expected whole bytes"),
        ({"pod_comand": []}, "pod.comand: unknown key, did you mean 'command'"),
        ({"replicas": -1}, "replicas: found -1"),
        ({"replicas": "3"}, "replicas: found '3', expected a whole number"),
        ({"replicas": 1.5}, "replicas: found 1.5, expected a whole number"),
        ({"replicas": True}, "replicas: found true, expected a whole number"),
        ({"replicas": [3]}, "replicas: found a list, expected a whole number"),
        (
            {"replicas": 10**4000},
            "replicas: found a number of more than 80 digits, expected a whole number from 0",
        ),
        ({"min_healthy_time": None}, "min_healthy_time: found nothing, expected a number"),
        ({"replicas": 10**12}, "replicas: found 1000000000000"),
        ({"replicas_per_node": 0}, "replicas_per_node: found 0"),
        ({"max_unavailable": 0}, "max_unavailable: found 0"),
        (
            {"max_unavailable": "0%"},
            "max_unavailable: found '0%', expected a whole number or a share from 1%",
        ),
        ({"max_unavailable": "many"}, "max_unavailable: found 'many', expected a whole number or a share"),
        ({"unhealthy_after": "1:30"}, "unhealthy_after: found '1:30', expected a time such as 90, 500ms"),
        ({"pod_stop": {"grace": "10 s"}}, "pod.stop.grace: found '10 s', expected a time"),
        ({"pod_resources": {"cpu": "half"}}, "pod.resources.cpu: found 'half', expected an amount such as"),
        ({"pod_logs": {"max_bytes": "500m"}}, "pod.logs.max_bytes: found '500m', expected a whole number"),
        ({"min_healthy_time": -1}, "min_healthy_time: found -1, expected 0 to"),
        ({"name": ""}, "name: found ''"),
        ({"name": "a/b"}, "name: found 'a/b'"),
        ({"name": ".."}, "name: found '..'"),
        ({"name": "Hello"}, "name: found 'Hello'"),
        ({"name": "x" * 64}, "name: found"),
        ({"name": 7}, "name: found 7, expected text: put it in quotes"),
        ({"name": None}, "name: found nothing, expected text"),
        ({"name": date(2026, 1, 2)}, "name: found the date 2026-01-02, expected text: put it in quotes"),
        ({"name": "a\nb"}, "name: found"),
        ({"pod_id": ""}, "pod.id: found ''"),
        ({"pod_id": "../x"}, "pod.id: found '../x'"),
        ({"pod_id": "a/b"}, "pod.id: found 'a/b'"),
        ({"pod_command": "sleep 9"}, "pod.command: found 'sleep 9', expected a list"),
        ({"pod_command": ["sleep", 9]}, "pod.command[1]: found 9, expected text: put it in quotes"),
        ({"pod_command": []}, "pod.command: found an empty list, expected at least the program to run"),
        (
            {"pod_resources": {"cpu": float("inf")}},
            "pod.resources.cpu: found .inf, expected zero or more, and finite",
        ),
        ({"pod_ulimits": {"nofile": 10**4000}}, "pod.ulimits.nofile: found a number of more than 80 digits"),
        ({"pod_env": {"A": 1}}, "pod.env.A: found 1, expected text: put it in quotes"),
        (
            {"pod_env": {"A": "1", "DEBUG": True}},
            "pod.env.DEBUG: found true, expected text: put it in quotes",
        ),
        ({"pod_env": {1: "x"}}, "pod.env: found the key 1, expected text: put it in quotes"),
        ({"pod_env": ["A=1"]}, "pod.env: found a list, expected a mapping"),
        ({"pod_ports": {"http": {"port": "80"}}}, "pod.ports.http.port: found '80', expected a whole number"),
        ({"pod_ports": {"http": {"prot": 80}}}, "pod.ports.http.prot: unknown key, did you mean 'port'?"),
        ({"pod_placement": {"spread": [{}]}}, "pod.placement.spread[0].label: missing, expected text"),
        (
            {"pod_env": {"FARMD_NODE": "x"}},
            "pod.env: found 'FARMD_NODE', expected a name that does not begin",
        ),
        ({"pod_health": {"type": "htp"}}, "pod.health.type: found 'htp', expected one of command, http, tcp"),
        ({"pod_env": {"A": "x" * manifests.MAX_MANIFEST_BYTES}}, f"at most {manifests.MAX_MANIFEST_BYTES}"),
        ({"node_selector": "rack in (a"}, "node_selector: "),
        ({"node_selector": "=x"}, "node_selector: "),
        ({"labels": {"": "x"}}, "labels: found ''"),
        ({"labels": {"a b": "x"}}, "labels: found 'a b'"),
        ({"labels": {"a": "x y"}}, "labels.a: found 'x y'"),
        ({"pod_labels": {"replication_controller_id": "x"}}, "replication_controller_id"),
        ({"strategy": "some"}, "strategy: found 'some', expected one of dynamic, static"),
        ({"on_lost": "panic"}, "on_lost: found 'panic', expected one of replace, wait"),
        ({"needs": ["a/b"]}, "needs: found 'a/b'"),
        ({"disabled": "no"}, "disabled: found 'no', expected true or false"),
        ({"labels": []}, "labels: found an empty list, expected a mapping"),
    ],
)
def test_bad_input_names_file_field_found_and_expected(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        RC.file.parse(hello(**fields), "a.yaml")
    assert caught.value.message.startswith("a.yaml: ")
    assert named in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, "name: missing"),
        ({"name": "x"}, "pod: missing"),
        ({"name": "x", "pod": "hello"}, "pod: found 'hello', expected a mapping"),
        ({"name": "x", "pod": {}}, "pod.id: missing, expected text"),
        (
            {"name": "x", "pod": {"id": "x"}},
            "pod.command: found an empty list, expected at least the program",
        ),
        ([], "document: found an empty list, expected a mapping"),
        ("text", "document: found 'text', expected a mapping"),
        (7, "document: found 7, expected a mapping"),
    ],
)
def test_what_is_missing_is_named(data: Any, named: str) -> None:
    with pytest.raises(InputInvalid, match=named):
        RC.file.parse(data, "a.yaml")


def test_one_name_twice_in_a_file_is_refused() -> None:
    text = yaml.safe_dump_all([hello(), hello()])
    with pytest.raises(InputInvalid, match=r"document 2.*'hello' again.*a.yaml \(document 1\) has it, too"):
        RC.file.parse_all((text, "a.yaml"))
    with pytest.raises(InputInvalid, match=r"b.yaml: name: found 'hello' again.*a.yaml has it, too"):
        RC.file.parse_all((yaml.safe_dump(hello()), "a.yaml"), (yaml.safe_dump(hello()), "b.yaml"))


def test_a_new_controller_must_say_its_count_and_an_old_one_keeps_it() -> None:
    open_ = RC.file.parse({**hello(), "replicas": None}, "a.yaml")
    with pytest.raises(InputInvalid, match="replicas: missing"):
        RC.file.build(open_, "ab12", "f" * 64)
    existing = RC.file.build(RC.file.parse(hello(replicas=7, disabled=True), "a.yaml"), "ab12", "f" * 64)
    kept = RC.file.build(open_, "ab12", "f" * 64, existing)
    assert (kept.replicas_desired, kept.disabled) == (7, True)


def test_equal_selectors_are_stored_as_equal_text() -> None:
    one = RC.file.build(RC.file.parse(hello(node_selector="b=2, a=1"), "x"), "ab12", "f" * 64)
    two = RC.file.build(RC.file.parse(hello(node_selector="a=1,b=2"), "x"), "ab12", "f" * 64)
    assert one == two


def test_units_are_stored_as_plain_numbers() -> None:
    units = hello(
        min_healthy_time="500ms",
        transfer_timeout="1h30m",
        pod_resources={"cpu": "500m", "memory": "1.5Gi", "gpu": 1},
        pod_health={"type": "command", "command": ["true"], "interval": "5s"},
        pod_ulimits={"as": "64Mi"},
        pod_stop_after="5m",
    )
    numbers = hello(
        min_healthy_time=0.5,
        transfer_timeout=5400,
        pod_resources={"cpu": 0.5, "memory": 1610612736, "gpu": 1},
        pod_health={"type": "command", "command": ["true"], "interval": 5},
        pod_ulimits={"as": 67108864},
        pod_stop_after=300,
    )
    assert RC.file.parse(units, "a.yaml") == RC.file.parse(numbers, "a.yaml")


@pytest.mark.parametrize(
    ("written", "replicas", "limit"),
    [("25%", 10, 2), ("25%", 3, 1), ("100%", 4, 4), ("1%", 0, 1), (3, 10, 3)],
)
def test_a_share_of_max_unavailable_is_rounded_down_and_at_least_one(
    written: int | str, replicas: int, limit: int
) -> None:
    spec = RC.file.parse(hello(max_unavailable=written, replicas=replicas), "a.yaml")
    record = RC.file.build(spec, "ab12", "f" * 64)
    assert record.unavailable_limit == limit
    assert RC.file.as_file(record, spec.pod).get("max_unavailable", 1) == written
    assert RC.file.build(spec, "ab12", "f" * 64, record) == record


def test_an_earlier_version_reads_a_share_as_one_and_its_own_number_wins_over_the_share() -> None:
    share = RC.file.build(RC.file.parse(hello(max_unavailable="50%", replicas=8), "a.yaml"), "ab12", "f" * 64)
    assert share.max_unavailable == 1
    edited = msgspec.structs.replace(share, max_unavailable=3)  # what is unknown to it stays
    assert edited.unavailable_limit == 3
    again = RC.file.build(RC.file.parse(hello(max_unavailable=1), "a.yaml"), "ab12", "f" * 64, edited)
    assert (again.max_unavailable, again.max_unavailable_percent) == (1, 0)


def test_a_record_comes_back_as_the_file_that_makes_it() -> None:
    data = hello(
        node_selector="rack=a",
        labels={"team": "web"},
        replicas_per_node=2,
        on_lost="wait",
        needs=["surge"],
        pod_env={"A": "1"},
    )
    spec = RC.file.parse(data, "a.yaml")
    wanted = RC.file.build(spec, "ab12", manifests.digest(manifests.canonical(spec.pod)))
    again = RC.file.parse(RC.file.as_file(wanted, spec.pod), "again")
    assert again.pod == spec.pod
    assert RC.file.build(again, "ab12", wanted.manifest) == wanted


CONTROLLERS = sorted(set(EXAMPLES.glob("*.yaml")) - set(EXAMPLES.glob("daemonset*.yaml")))


@pytest.mark.parametrize("path", CONTROLLERS, ids=lambda path: path.name)
def test_every_example_is_good(path: Path) -> None:
    for spec in RC.file.parse_all((path.read_text(), path.name)):
        assert spec.pod.id == spec.name


def test_r11_an_equal_file_changes_nothing_whatever_its_pods_need_of_farms() -> None:
    pod = {
        "id": "web",
        "command": ["x"],
        "files": [{"path": "a", "template": "b"}],
        "init": [{"command": ["x"]}],
        "after_stop": [{"command": ["x"]}],
    }
    spec = RC.file.parse({"name": "web", "replicas": 1, "pod": pod, "needs": ["own.1"]}, "web.yaml")
    made = RC.file.build(spec, "0", "1" * 64)
    assert made.needs == ["own.1", "after-stop.1", "files.process", "init.1", "templates.1"]
    assert RC.file.build(spec, "0", "1" * 64, made) == made


def test_r11_what_farmd_itself_needs_of_the_owners_of_a_record_survives_its_file() -> None:
    stands = RC.file.build(RC.file.parse(hello(needs=["gpu"]), "web.yaml"), "00aa", "f" * 64)
    managed = msgspec.structs.replace(stands, needs=["gpu", "numbered.1", "rollouts.1"], numbered=True)
    edited = RC.file.build(RC.file.parse(hello(needs=["tpu"]), "web.yaml"), "00aa", "f" * 64, managed)
    assert (edited.needs, edited.numbered) == (["tpu", "numbered.1", "rollouts.1"], True)


@pytest.mark.parametrize(("name", "runtime"), [("container.yaml", "container"), ("unit.yaml", "systemd")])
def test_the_example_of_a_runtime_is_a_controller(name: str, runtime: str) -> None:
    [parsed] = RC.file.parse_all(((EXAMPLES / name).read_text(), name))
    assert parsed.pod.runtime == runtime


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"restart": {"policy": "on-failure"}}, ["one-shot.1"]),
        ({"placement": {"pod_affinity": [{"selector": "app=db"}]}}, ["pod-affinity.1"]),
    ],
)
def test_r11_what_older_farms_would_not_obey_is_kept_from_them(
    fields: dict[str, Any], needs: list[str]
) -> None:
    document = hello()
    spec = RC.file.parse(document | {"pod": document["pod"] | fields}, "web.yaml")
    made = RC.file.build(spec, "00aa", "f" * 64)
    assert made.needs == needs
    assert RC.file.build(spec, "00aa", "f" * 64, made) == made
