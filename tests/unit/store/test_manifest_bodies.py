"""Manifests in the store: read with proof, set again by whoever refers to them (R24)."""

from __future__ import annotations

import msgspec
import pytest

from farmd import kinds
from store import features, manifests, operations
from store.containers import Limits
from store.errors import InputInvalid, NotFound, RecordInvalid
from store.manifests import MAX_MANIFEST_BYTES, AfterStop, HealthCheck, Init, Manifest, Sidecar
from tests.people import KEYS, parsed, person

POD = Manifest(id="hello", command=["sleep", "9"])
BODY = manifests.canonical(POD)
SHA = manifests.digest(BODY)


async def test_a_body_is_read_back_under_its_digest() -> None:
    async with person() as call:
        await call.client.transaction([manifests.ensure(KEYS, BODY)])
        assert await manifests.read(call.client, KEYS, SHA) == POD


async def test_a_body_that_somebody_changed_by_hand_is_refused() -> None:
    async with person() as call:
        await call.client.put(KEYS.manifest(SHA), BODY.replace(b"sleep", b"steal"))
        with pytest.raises(RecordInvalid, match="digest"):
            await manifests.read(call.client, KEYS, SHA)


async def test_a_body_with_a_field_of_an_older_version_is_read_back_under_its_digest() -> None:
    body = b'{"command":["sleep","9"],"id":"hello","priority":80}'
    async with person() as call:
        await call.client.transaction([manifests.ensure(KEYS, body)])
        assert await manifests.read(call.client, KEYS, manifests.digest(body)) == POD


def test_a_field_of_an_older_version_is_refused_in_a_persons_file() -> None:
    with pytest.raises(InputInvalid, match=r"f: priority: unknown key"):
        parsed({"id": "hello", "command": ["sleep", "9"], "priority": 80}, "f")


async def test_a_missing_body_is_not_found() -> None:
    async with person() as call:
        with pytest.raises(NotFound):
            await manifests.read_body(call.client, KEYS, SHA)


async def test_setting_a_body_again_defeats_a_condemnation() -> None:
    async with person() as call:
        await call.client.transaction([manifests.ensure(KEYS, BODY)])
        found = await call.client.read(KEYS.manifest(SHA))
        assert found is not None
        await call.client.transaction([operations.cas(found.key, BODY, found.modify_index, flags=1)])
        condemned = await call.client.read(KEYS.manifest(SHA))
        assert condemned is not None
        await call.client.transaction([manifests.ensure(KEYS, BODY)])
        assert not await call.client.delete(KEYS.manifest(SHA), cas=condemned.modify_index)
        saved = await call.client.read(KEYS.manifest(SHA))
        assert saved is not None
        assert saved.flags == 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"id": ""}, "id"),
        ({"id": "a/b"}, "id"),
        ({"id": ".."}, "id"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"args": ["a\0b"]}, "NUL"),
        ({"env": {"A=B": "c"}}, "env"),
        ({"ports": {"HTTP": {}}}, "ports"),
        ({"ports": {"http": {"port": 70000}}}, "ports.http.port"),
        ({"working_directory": "tmp"}, "working_directory"),
        ({"working_directory": "/var/../etc"}, "working_directory"),
        ({"resources": {"cpu": -1}}, "resources.cpu"),
        ({"resources": {"cpu": float("nan")}}, "resources.cpu"),
        ({"resources": {"cpu": float("inf")}}, "resources.cpu"),
        ({"stop": {"signal": "HARD"}}, "stop.signal"),
        ({"stop": {"grace": -1}}, "stop.grace"),
        ({"stop": {"grace": float("nan")}}, "stop.grace"),
        ({"restart": {"initial": float("inf")}}, "restart.initial"),
        ({"logs": {"max_bytes": 1}}, "logs.max_bytes"),
        ({"ulimits": {"nofile": -5}}, "ulimits.nofile"),
        (
            {"health": {"type": "command", "command": ["x"], "restart_after": -1}},
            "health.restart_after: found -1",
        ),
        (
            {
                "health": {"type": "command", "command": ["x"], "restart_after": 1},
                "restart": {"policy": "never"},
            },
            "health.restart_after: found 1, expected 0, because restart.policy is never",
        ),
        ({"health": {"type": "http", "port": "web"}}, "health.port"),
        ({"health": {"type": "tcp"}}, "health.port"),
        ({"health": {"type": "command"}}, "health.command"),
        ({"health": {"type": "ping"}}, "expected one of command, http, tcp"),
        ({"ports": {"w": {}}, "health": {"type": "http", "port": "w", "path": "a"}}, "health.path"),
        (
            {"ports": {"w": {}}, "health": {"type": "http", "port": "w", "path": "/ HTTP/1.1\r\nX:"}},
            "health.path",
        ),
        ({"ports": {"w": {}}, "health": {"type": "tcp", "port": "w", "interval": 0}}, "health.interval"),
        (
            {"ports": {"w": {}}, "health": {"type": "tcp", "port": "w", "timeout": float("nan")}},
            "health.timeout",
        ),
        ({"comand": ["x"]}, "did you mean 'command'"),
        ({"stop_after": 10**400}, "stop_after"),
        ({"ulimits": {"nofile": 10**30}}, "ulimits.nofile"),
        ({"stop": {"grace": 1e30}}, "stop.grace"),
        ({"logs": {"keep": 10**30}}, "logs.keep"),
        ({"health": {"type": "command", "command": ["x"], "failures": 0}}, "health.failures: found 0"),
        ({"env": {"A": "\ud800"}}, "JSON cannot hold"),
        ({"env": {"A": "x" * MAX_MANIFEST_BYTES}}, str(MAX_MANIFEST_BYTES)),
        ({"init": [{"command": []}]}, "init[0].command: found an empty list"),
        ({"init": [{"command": [""]}]}, "init[0].command"),
        ({"init": [{"timeout": 5}]}, "command"),
        ({"init": [{"command": ["x"], "timeout": 0}]}, "init[0].timeout: found 0"),
        ({"init": [{"command": ["x"], "timeout": float("nan")}]}, "init[0].timeout"),
        ({"init": [{"command": ["x"], "timeout": "2d"}]}, "init[0].timeout"),
        ({"init": [{"command": ["x"], "retries": -1}]}, "init[0].retries"),
        ({"init": [{"command": ["x"], "retries": 101}]}, "0 to 100"),
        ({"init": [{"command": ["x"], "retrys": 1}]}, "did you mean 'retries'"),
        ({"init": [{"command": ["x"]}] * 17}, "17 commands"),
        ({"init": {"command": ["x"]}}, "init"),
        ({"after_stop": [{"command": ["x"], "timeout": 0}]}, "after_stop[0].timeout"),
        ({"after_stop": [{"command": ["x"], "retries": 1}]}, "retries"),
        ({"after_stop": [{"command": ["x"], "timeout": 400}] * 2}, "at most 600 s in all"),
        (
            {"runtime": "container", "container": {"image": "a"}, "after_stop": [{"command": ["x"]}]},
            "'systemd'",
        ),
        (
            {
                "runtime": "container",
                "container": {"image": "a"},
                "init": [{"command": ["x"]}],
                "stop_after": 60,
            },
            "init: found 1, expected no commands: a container with stop_after has none",
        ),
        ({"sidecars": [{"name": "main", "command": ["x"]}]}, "sidecars[0].name: found 'main'"),
        ({"sidecars": [{"name": "../x", "command": ["x"]}]}, "sidecars[0].name"),
        ({"sidecars": [{"name": "", "command": ["x"]}]}, "sidecars[0].name"),
        ({"sidecars": [{"name": "a", "command": ["x"]}] * 2}, "sidecars[1].name: found 'a', expected a name"),
        ({"sidecars": [{"name": "a", "command": []}]}, "sidecars[0].command: found an empty list"),
        ({"sidecars": [{"name": "a"}]}, "command"),
        ({"sidecars": [{"name": f"a{n}", "command": ["x"]} for n in range(9)]}, "at most 8"),
        ({"sidecars": {"a": {"command": ["x"]}}}, "sidecars"),
        ({"sidecars": [{"name": "a", "command": ["x"], "health": {}}]}, "health"),
        ({"command": [], "sidecars": [{"name": "a", "command": ["x"]}]}, "command: found an empty list"),
        (
            {
                "runtime": "container",
                "container": {"image": "a"},
                "sidecars": [{"name": "a", "command": ["x"]}],
            },
            "only the runtimes 'process' and 'systemd'",
        ),
        ({"runtime": "vm"}, "expected one of container, process, systemd"),
    ],
)
def test_a_manifest_that_cannot_work_names_file_and_field(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        parsed({"id": "hello", "command": ["x"], **fields}, "pod.yaml")
    assert caught.value.message.startswith("pod.yaml: ")
    assert named in caught.value.message
    assert "\n" not in caught.value.message


def test_r11_limits_of_processes_need_groups_and_weights_an_agent_that_knows_them() -> None:
    pod = Manifest(id="web", command=["x"], limits=Limits(cpu=1.0))
    unit = msgspec.structs.replace(pod, runtime="systemd")
    assert features.lacking(features.needed(pod), ["process"]) == [features.LIMITS]
    assert features.LIMITS in features.needed_of_farm(pod)
    assert features.lacking(features.needed(unit), ["runtime.systemd"]) == []
    assert features.LIMITS not in features.needed_of_farm(unit)
    heavy = msgspec.structs.replace(unit, limits=Limits(io_weight=500))
    assert features.lacking(features.needed(heavy), ["runtime.systemd"]) == [features.IO_WEIGHT]


def test_r43_commands_before_and_after_need_an_agent_and_a_farm_that_know_them() -> None:
    pod = Manifest(id="web", command=["x"])
    all_of_them = [features.INIT, features.AFTER_STOP, features.SIDECARS]
    assert set(all_of_them).isdisjoint(features.needed(pod))
    more = msgspec.structs.replace(
        pod,
        init=[Init(command=["x"])],
        after_stop=[AfterStop(command=["x"])],
        sidecars=[Sidecar(name="a", command=["x"])],
    )
    assert features.lacking(features.needed(more), ["process"]) == all_of_them
    assert set(all_of_them) <= set(features.needed_of_farm(more)) & set(kinds.features())


def test_r11_only_a_pod_with_restart_after_needs_an_agent_that_knows_it() -> None:
    check = HealthCheck(type="command", command=["true"])
    pod = Manifest(id="web", command=["x"], health=check)
    assert features.RESTART_AFTER not in features.needed(pod)
    again = msgspec.structs.replace(pod, health=msgspec.structs.replace(check, restart_after=30.0))
    assert features.lacking(features.needed(again), ["process", features.LEAVING]) == [features.RESTART_AFTER]
