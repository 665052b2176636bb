"""How files are laid over one another: the rules by table, tags, and that merging is associative."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farmd.compose.merge import Override, Reset, merged, settled
from store.errors import InputInvalid
from tests.unit.compose.disk import project


def over(base: str, top: str) -> Any:
    found = merged(*({"services": {"web": yaml.safe_load(text)}} for text in (base, top)))
    return found["services"]["web"]


@pytest.mark.parametrize(
    ("base", "top", "expected"),
    [
        ("image: a", "image: b", "image: b"),
        ("image: a", "image:", "image: a"),
        ("command: [a, b]", "command: [c]", "command: [c]"),
        ("entrypoint: a", "entrypoint: [b]", "entrypoint: [b]"),
        (
            "healthcheck: {test: [CMD, a], retries: 3}",
            "healthcheck: {test: [CMD, b]}",
            "healthcheck: {test: [CMD, b], retries: 3}",
        ),
        ("environment: [A=1, B=2]", "environment: {B: 3, C: }", "environment: {A: '1', B: 3, C: }"),
        ("labels: [a=1]", "labels: [a=2, b]", "labels: {a: '2', b: }"),
        ("dns: 1.1.1.1", "dns: [8.8.8.8, 1.1.1.1]", "dns: [1.1.1.1, 8.8.8.8]"),
        ("expose: ['80']", "expose: ['80', '81']", "expose: ['80', '81']"),
        ("ports: ['80:80']", "ports: ['81:80', '80:80/udp']", "ports: ['80:80', '81:80', '80:80/udp']"),
        (
            "ports: ['127.0.0.1:80:80']",
            "ports: [{host_ip: 127.0.0.1, published: 80, target: 80}]",
            "ports: [{host_ip: 127.0.0.1, published: 80, target: 80}]",
        ),
        ("volumes: ['a:/x', 'b:/y']", "volumes: ['c:/x:ro']", "volumes: ['c:/x:ro', 'b:/y']"),
        (
            "volumes: ['a:/x']",
            "volumes: [{type: bind, source: /s, target: /x}]",
            "volumes: [{type: bind, source: /s, target: /x}]",
        ),
        ("configs: [a]", "configs: [{source: a, mode: 0400}, b]", "configs: [{source: a, mode: 0400}, b]"),
        ("devices: ['/dev/a:/dev/x']", "devices: ['/dev/b:/dev/x']", "devices: ['/dev/b:/dev/x']"),
        (
            "depends_on: [a]",
            "depends_on: {a: {condition: service_healthy}, b: {condition: service_started}}",
            "depends_on: {a: {condition: service_healthy}, b: {condition: service_started}}",
        ),
        ("networks: [a]", "networks: {a: {aliases: [x]}}", "networks: {a: {aliases: [x]}}"),
        ("logging: {driver: a, options: {x: 1}}", "logging: {driver: b}", "logging: {driver: b}"),
        (
            "logging: {driver: a, options: {x: 1}}",
            "logging: {options: {y: 2}}",
            "logging: {driver: a, options: {x: 1, y: 2}}",
        ),
        ("ulimits: {nofile: 1}", "ulimits: {nproc: 2}", "ulimits: {nofile: 1, nproc: 2}"),
        (
            "deploy: {replicas: 1, labels: [a=1]}",
            "deploy: {mode: global, labels: {b: 2}}",
            "deploy: {replicas: 1, mode: global, labels: {a: '1', b: 2}}",
        ),
        ("extra_hosts: ['a:1.1.1.1']", "extra_hosts: {a: 2.2.2.2}", "extra_hosts: {a: 2.2.2.2}"),
        ("env_file: a", "env_file: [b]", "env_file: [a, b]"),
    ],
)
def test_a_key_is_merged_by_its_rule(base: str, top: str, expected: str) -> None:
    assert over(base, top) == yaml.safe_load(expected)


@pytest.mark.parametrize(
    ("base", "top"),
    [
        ("ports: ['80']", "ports: {a: 1}"),
        ("image: a", "image: [b]"),
        ("environment: [{A: 1}]", "environment: {A: 1}"),
    ],
)
def test_forms_that_cannot_be_merged_are_refused_by_their_path(base: str, top: str) -> None:
    with pytest.raises(InputInvalid, match=r"^services\.web\.\w+: found "):
        over(base, top)


def test_reset_takes_away_and_override_replaces_whole() -> None:
    base = """
        services:
          web: {image: a, ports: ["80:80", "81:81"], environment: {A: 1, B: 2}, cap_add: [NET_ADMIN]}
    """
    top = """
        services:
          web:
            ports: !override ["90:90"]
            environment: {A: !reset null, C: 3}
            cap_add: !reset []
    """
    web = project(base, top).services["web"]
    assert [port.published for port in web.ports] == [90]
    assert web.container.env == {"B": "2", "C": "3"}
    assert web.container.cap_add == []


def test_anchors_and_merge_keys_are_written_out() -> None:
    web = project("""
        x-common: &common {restart: "no", environment: &env {A: 1}}
        services:
          web: {<<: *common, image: a, environment: {<<: *env, B: 2}}
    """).services["web"]
    assert (web.container.restart.policy, web.container.env) == ("never", {"A": "1", "B": "2"})


scalars = st.sampled_from([None, "a", "A=1", "x:/y", 1])
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(st.sampled_from(["a", "A=1", "x:/y", "z:/y"]), max_size=3),
        st.dictionaries(st.sampled_from(["labels", "volumes", "a"]), inner, max_size=3),
        st.builds(Override, inner),
        st.just(Reset()),
    ),
    max_leaves=6,
)


@given(values, values, values)
def test_merging_is_associative(one: Any, two: Any, three: Any) -> None:
    documents = [{"services": {"web": {"environment": each}}} for each in (one, two, three)]
    first, second, third = documents
    try:
        left = merged(merged(first, second), third)
        right = merged(first, merged(second, third))
    except InputInvalid:
        return
    assert settled(left) == settled(right)
