"""Each key of the compose specification is supported, changed, warned of, or refused with one clear line.

``fixtures/compose-spec.json`` is ``schema/compose-spec.json`` of the Go module compose-spec/compose-go,
version 2.16.2, Copyright 2020 The Compose Specification Authors, Apache License 2.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farmd.compose import schema
from farmd.compose.verdicts import EXTENSIONS, TABLE, KeyRule, verdict
from store.errors import InputInvalid
from tests.unit.compose.disk import project, service

SPECIFICATION = json.loads((Path(__file__).parent / "fixtures" / "compose-spec.json").read_text())


def keys(node: Any, path: tuple[str, ...] = (), seen: tuple[str, ...] = ()) -> Iterator[str]:
    """All keys below a node of a JSON schema, such as ``services.*.image``."""
    if not isinstance(node, dict):
        return
    name = node.get("$ref", "").rpartition("/")[2]
    if name and name not in seen:
        yield from keys(SPECIFICATION["$defs"][name], path, (*seen, name))
    for form in ("oneOf", "anyOf", "allOf"):
        for each in node.get(form, []):
            yield from keys(each, path, seen)
    for key, each in node.get("properties", {}).items():
        yield ".".join((*path, key))
        yield from keys(each, (*path, key), seen)
    for each in [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]:
        yield from keys(each, (*path, "*"), seen)
    yield from keys(node.get("items"), (*path, "[]"), seen)


KEYS = sorted(set(keys(SPECIFICATION)))


def test_the_walk_sees_the_whole_specification() -> None:
    assert len(KEYS) > 700
    assert {"services.*.image", "services.*.ports.[].target", "volumes.*.driver_opts", "include"} <= set(KEYS)


def test_each_key_of_the_specification_has_a_verdict_of_its_own() -> None:
    for key in KEYS:
        node = TABLE
        for part in key.split("."):
            if node is not TABLE and node.kind in ("warned", "refused"):
                break
            if part == "[]" and "[]" not in node.within and "*" in node.within:
                continue
            assert part in node.within, f"{key}: {part} has no verdict"
            node = node.within[part]
        assert node.kind in ("supported", "changed") or node.text, key
        assert verdict(key) is node, key


def leaves(node: KeyRule, path: tuple[str, ...] = ()) -> Iterator[tuple[str, KeyRule]]:
    for part, inner in node.within.items():
        yield ".".join((*path, part)), inner
        yield from leaves(inner, (*path, part))


def test_no_verdict_is_on_a_key_that_the_specification_does_not_have() -> None:
    known = {".".join(name.split(".")[:end]) for name in KEYS for end in range(1, name.count(".") + 2)}
    ours = {key for key, _ in leaves(TABLE) if any(part.startswith("x-") for part in key.split("."))}
    assert {key for key, _ in leaves(TABLE)} - known - ours == set()


def test_each_key_that_is_read_is_supported() -> None:
    for field in set(schema.Service.__struct_encode_fields__) - set(EXTENSIONS):
        found = verdict(f"services.*.{field}")
        assert found is not None, field
        assert found.kind in ("supported", "changed"), field


REFUSED = [key for key, node in leaves(TABLE) if node.kind == "refused"]


@pytest.mark.parametrize("key", REFUSED)
def test_a_refused_key_says_in_one_line_what_to_do(key: str) -> None:
    document: Any = "x"
    for part in reversed(key.split(".")):
        document = [document] if part == "[]" else {"name" if part == "*" else part: document}
    document.setdefault("services", {}).setdefault("name", {}).setdefault("image", "a")
    with pytest.raises(InputInvalid) as caught:
        project(json.dumps(document))
    assert ": is not supported: " in caught.value.message
    assert "\n" not in caught.value.message


def test_a_warned_key_is_named_once_and_does_nothing() -> None:
    found = project("""
        version: "3"
        services:
          web: {image: a, container_name: x, links: [db], tty: true, build: {context: ., bogus: 1}}
    """)
    assert [line.partition(" is ignored")[0] for line in found.warnings] == [
        "version",
        "services.web.container_name",
        "services.web.links",
        "services.web.tty",
        "services.web.build",
    ]
    assert found.services["web"] == project("services: {web: {image: a}}").services["web"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("imgae: a", "services.web.imgae: unknown key, did you mean 'image'?"),
        ("healthcheck: {tests: a}", "services.web.healthcheck.tests: unknown key, did you mean 'test'?"),
        ("deploy: {replica: 1}", "services.web.deploy.replica: unknown key, did you mean 'replicas'?"),
        (
            "ports: [{target: 80, publish: 1}]",
            "services.web.ports[0].publish: unknown key, did you mean 'published'?",
        ),
        ("depends_on: {db: {conditon: x}}", "services.web.depends_on.db.conditon: unknown key"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(keys: str, message: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        service(keys)
    assert message in caught.value.message
    assert caught.value.message.startswith("shop/0.yaml: ")


@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        ("restart: on-failure:3", "restart: the 3 is ignored: restarts are not limited"),
        (
            "restart: always\ndeploy: {restart_policy: {condition: none}}",
            "restart is ignored: deploy.restart_policy is set, too",
        ),
        ("healthcheck: {interval: 5s}", "healthcheck is ignored: it has no test"),
        ("tmpfs: /x:suid,huge=always", "tmpfs[0]: suid, huge is ignored: the engine does not support it"),
        ("volumes: ['/a:/x:z']", "volumes[0].bind.selinux is ignored: label the folder on the machine"),
        ("volumes: ['/a:/x:ro,cached']", "volumes[0].consistency is ignored"),
        ("volumes: [{type: tmpfs, source: a, target: /x}]", "volumes[0].source is ignored"),
        (
            "volumes: [{type: bind, source: /a, target: /x, tmpfs: {size: 1}}]",
            "volumes[0].tmpfs is ignored: the mount is of type bind",
        ),
        ("x-port: [80]", "x-port is ignored: did you mean 'x-ports'?"),
        ("expose: [80]", "expose is ignored: services of one network always reach"),
    ],
)
def test_a_value_that_has_no_meaning_here_is_warned_of(keys: str, warning: str) -> None:
    text = f"services:\n  web:\n    image: a\n    {keys.replace(chr(10), chr(10) + '    ')}\n"
    (found,) = project(text).warnings
    assert found.startswith(f"services.web.{warning}")


@pytest.mark.parametrize("driver", ["overlay", "macvlan"])
def test_a_network_of_another_driver_is_warned_of(driver: str) -> None:
    found = project(
        f"services: {{a: {{image: x}}}}\nnetworks: {{n: {{driver: {driver}}}, m: {{driver: bridge}}}}"
    )
    assert found.warnings == ("networks.n.driver is ignored: networks here are bridges of one machine",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x-farmd: {on_lost: wait}", "line 2: x-farmd.on_lost: is not supported: it applies to one service"),
        ("x-machines: [m1]", "line 2: x-machines: found it here, expected it in a service"),
        ("x-farmd: {prefx: a}", "line 2: x-farmd.prefx: unknown key, did you mean 'prefix'?"),
    ],
)
def test_an_extension_in_the_wrong_place_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        project(f"services: {{a: {{image: x}}}}\n{text}")
    assert message in caught.value.message
