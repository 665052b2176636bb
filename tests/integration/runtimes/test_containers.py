"""What only containers have, on a real engine: limits, mounts, files, policy, and an engine that fails."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from farmd.agent.errors import StartFailed
from farmd.agent.forward import Forward
from farmd.runtime.streams import Streams
from store.access import Exec
from store.containers import Container, Limits, Mount, Secret
from store.manifests import HealthCheck, Manifest, Port, Restart, Stop
from tests.agents import FAST, Agents, alive, logged, sha_of
from tests.engine import IMAGE, PodmanEngine
from tests.fleet import eventually

pytestmark = pytest.mark.xdist_group("containers")

WAITS = "while :; do sleep 0.05; done"


def container(
    script: str = WAITS, /, *, image: str = IMAGE, options: dict[str, Any] | None = None, **fields: Any
):
    """A pod that runs a shell script in a container."""
    given: dict[str, Any] = {
        "id": "web",
        "command": ["/bin/sh", "-c", script],
        "runtime": "container",
        "container": Container(image=image, **({"pull": "never"} | (options or {}))),
        "restart": FAST,
        "stop": Stop(grace=0.2),
    }
    return Manifest(**(given | fields))


async def doubts(rig: Agents, *runtimes: str) -> dict[str, str]:
    """What the node's presence says, once these runtimes alone are in doubt."""

    async def told() -> list[dict[str, str]]:
        found = await rig.presence()
        return [found[0].doubts] if found is not None and {*found[0].doubts} == {*runtimes} else []

    found: list[dict[str, str]] = await eventually(told, what=f"doubts of {runtimes}")
    return found[0]


async def test_limits_hold(rig: Agents) -> None:
    running = await rig.agent()
    script = "(i=0; while [ $i -lt 40 ]; do sleep 9 & i=$((i+1)); done) 2>&1; echo none; tail /dev/zero"
    limits = Limits(memory=32 * 2**20, cpu=0.5, pids=20)
    await rig.want(container(script, limits=limits, restart=Restart(initial=600, maximum=600)))
    told = await rig.until(lambda r: r.exits)
    assert told.exits[-1].code == -9
    assert "can't fork" in await logged(running, "fork")


async def test_the_engine_is_told_every_limit(rig: Agents, engine: PodmanEngine) -> None:
    await rig.agent()
    await rig.want(
        container(limits=Limits(memory=32 * 2**20, cpu=0.5, pids=20), ulimits={"nofile": 64, "nproc": 4096})
    )
    await rig.until(lambda r: r.phase == "running")
    form = "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}}"
    assert engine.run("inspect", "farmd..n1..web", "--format", form) == "33554432 500000000 20"


async def test_a_container_listens_on_a_port_of_its_own_choice(rig: Agents) -> None:
    running = await rig.agent()
    ports = {"http": Port(container=80), "dns": Port(container=53, protocol="udp")}
    check = HealthCheck(type="tcp", port="http", interval=0.1, failures=100)
    script = "env | grep PORT | sort; exec busybox httpd -fp $FARMD_PORT_HTTP -h /tmp"
    await rig.want(container(script, ports=ports, health=check))
    told = await rig.until(lambda r: r.health.state == "passing")
    assert {80, 53}.isdisjoint(told.ports.values())
    assert await logged(running, "HTTP") == "FARMD_PORT_DNS=53\nFARMD_PORT_HTTP=80\n"


async def test_r42_a_port_is_reached_in_the_network_of_that_very_container(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(container("exec busybox httpd -fp 127.0.0.1:80 -h /etc", options={"network": "none"}))
    await rig.until(lambda r: r.phase == "running")
    pod = running.agent.pods.get("web")
    assert pod is not None
    assert pod.identity is not None
    runtime = running.agent.runtimes.of("container")
    reused = msgspec.structs.replace(pod.identity, pid=os.getpid())
    with pytest.raises(StartFailed, match="the pod does not run now"):
        await runtime.network(reused)
    forward = Forward(await runtime.network(pod.identity), {}, "127.0.0.1", 80)

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await forward.serve(Streams(socket))
        return socket

    app = web.Application()
    app.router.add_get("/", serve)
    try:
        async with TestClient(TestServer(app)) as client, client.ws_connect("/") as socket:
            streams, got = Streams(socket), b""
            streams.open(3)
            await streams.tell(open=3)
            await streams.send(3, b"GET /hostname HTTP/1.0\r\n\r\n")
            async for message in streams.messages():
                if isinstance(message, dict):
                    assert message == {"closed": 3, "why": ""}
                    break
                got += message[1]
                if not message[1]:
                    await streams.finish(3)
            assert b"200 OK" in got
    finally:
        forward.close()


async def test_r42_a_command_that_a_container_does_not_have_ends_as_in_a_shell(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(container())
    await rig.until(lambda r: r.phase == "running")
    pod = running.agent.pods.get("web")
    assert pod is not None
    assert pod.identity is not None
    assert pod.manifest is not None
    runtime = running.agent.runtimes.of("container")
    output = b""

    async def send(_: int, data: bytes) -> None:
        nonlocal output
        output += data

    execution = await runtime.execute(pod.identity, pod.manifest, Exec(command=("no-such",)), {})
    try:
        _, code = await asyncio.gather(execution.pump(send), execution.wait())
    finally:
        await execution.end()
    assert (code, b'"no-such"' in output) == (127, True)


async def test_containers_of_one_network_find_one_another_by_name(rig: Agents) -> None:
    await rig.agent()
    serve = container("exec busybox httpd -fp 80 -h /etc", options={"networks": {"farmd-test-shop": ["db"]}})
    await rig.want(serve, instance="db")
    await rig.until_running(serve, instance="db")
    address = "wget -qO- http://db/passwd || wget -qO- http://farmd..n1..db/passwd"
    check = HealthCheck(type="command", command=["/bin/sh", "-c", address], interval=0.2, timeout=60)
    await rig.want(container(options={"networks": {"farmd-test-shop": []}}, health=check))
    told = await rig.until(lambda r: r.health.state != "unknown")
    assert told.phase == "running"


@pytest.mark.parametrize(
    ("options", "fields", "what"),
    [
        ({"privileged": True}, {}, "privileged"),
        ({"network": "host", "pid": "host"}, {}, "host-network, host-pid"),
        ({"cap_add": ["SYS_ADMIN"]}, {}, "capabilities"),
        ({}, {"mounts": [Mount(type="bind", source="/etc", target="/host")]}, "/etc"),
    ],
)
async def test_what_the_node_does_not_allow_is_refused_and_the_former_one_stays(
    rig: Agents, options: dict[str, Any], fields: dict[str, Any], what: str
) -> None:
    await rig.agent()
    await rig.want(container())
    before = await rig.until(lambda r: r.phase == "running")
    index = await rig.want(container(options=options, **fields))
    told = await rig.until(lambda r: r.refused == index)
    assert (told.pid, told.phase) == (before.pid, "running")
    assert told.reason.endswith(f"agent.allow: this node does not allow {what}")


async def test_a_link_leads_to_no_folder_that_is_not_allowed(rig: Agents, tmp_path: Path) -> None:
    await rig.agent()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "way-out").symlink_to("/etc")
    mount = Mount(type="bind", source=str(tmp_path / "shared" / "way-out"), target="/host")
    await rig.want(container(mounts=[mount]))
    told = await rig.until(lambda r: r.phase == "failed")
    assert told.reason == "agent.allow: this node does not allow /etc"


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (container(image="localhost/none:1"), "localhost/none:1 is not on this node"),
        (container(image="localhost/none:1", options={"pull": "missing"}), "cannot be pulled"),
        (container(secrets=[Secret(name="absent")]), "secrets: absent: No such file or directory"),
    ],
)
async def test_what_cannot_be_prepared_is_refused_before_the_former_one_is_stopped(
    rig: Agents, manifest: Manifest, why: str
) -> None:
    await rig.agent()
    await rig.want(container())
    before = await rig.until(lambda r: r.phase == "running")
    index = await rig.want(manifest)
    told = await rig.until(lambda r: r.refused == index and why in r.reason)
    assert (told.pid, told.manifest, alive(before)) == (before.pid, sha_of(container()), True)


async def test_r26_an_engine_that_hangs_starts_and_ends_nothing(
    rig: Agents, engine: PodmanEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farmd.agent.runtimes.engine.ANSWER_SECONDS", 1.0)
    first = await rig.agent()
    await rig.want(container())
    before = await rig.until(lambda r: r.phase == "running")
    await first.close()
    engine.pause()
    try:
        second = await rig.agent()
        told = await rig.until(lambda r: "does not answer" in r.reason)
        assert (told.exits, alive(before)) == ([], True)
        assert "does not answer" in (await doubts(rig, "container"))["container"]
    finally:
        engine.resume()
    after = await rig.until(lambda r: r.phase == "running" and not r.reason)
    assert (after.pid, after.started, after.restarts) == (before.pid, before.started, 0)
    assert "runtime.container" in second.agent.runtimes.features()
    assert await doubts(rig) == {}


async def test_r26_a_check_that_the_engine_does_not_run_tells_nothing_of_the_pod(
    rig: Agents, engine: PodmanEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farmd.agent.runtimes.engine.ANSWER_SECONDS", 1.0)
    await rig.agent()
    check = HealthCheck(type="command", command=["/bin/true"], interval=0.1, timeout=10, failures=1)
    manifest = container(health=check)
    await rig.want(manifest)
    before = await rig.until(lambda r: r.health.state == "passing")
    engine.kill()
    told = await rig.until(lambda r: "does not answer" in r.reason)
    assert (told.health, told.phase) == (before.health, "running")
    engine.start()
    await rig.until(lambda r: not r.reason)
    engine.pause()
    try:
        told = await rig.until(lambda r: "does not answer" in r.reason)
        assert (told.health, told.phase) == (before.health, "running")
    finally:
        engine.resume()
    after = await rig.until(lambda r: not r.reason)
    assert (after.health, after.started) == (before.health, before.started)


async def test_r27_an_engine_that_is_killed_and_comes_back_takes_no_container_with_it(
    rig: Agents, engine: PodmanEngine
) -> None:
    running = await rig.agent()
    await rig.want(container(f"trap 'echo signal' USR1; echo up; {WAITS}"))
    before = await rig.until(lambda r: r.phase == "running")
    await logged(running, "up")
    engine.kill()
    await rig.until(lambda r: "does not answer" in r.reason)
    engine.start()
    after = await rig.until(lambda r: not r.reason)
    assert (after.pid, after.started) == (before.pid, before.started)
    engine.run("kill", "--signal", "USR1", "farmd..n1..web")
    assert await logged(running, "signal") == "up\nsignal\n"


async def test_output_with_carriage_returns_is_whole_also_after_the_engine_was_killed(
    rig: Agents, engine: PodmanEngine
) -> None:
    running = await rig.agent()
    await rig.want(container(f"trap 'echo signal' USR1; printf '10%% done\\r20%% done\\rZ Z\\n'; {WAITS}"))
    await rig.until(lambda r: r.phase == "running")
    await logged(running, "Z\n")
    engine.kill()
    await rig.until(lambda r: "does not answer" in r.reason)
    engine.start()
    await rig.until(lambda r: not r.reason)
    engine.run("kill", "--signal", "USR1", "farmd..n1..web")
    assert await logged(running, "signal") == "10% done\n20% done\nZ Z\nsignal\n"


@pytest.mark.parametrize("engine_first", [True, False])
async def test_r26_after_a_loss_of_power_each_pod_is_started_once(
    rig: Agents, engine: PodmanEngine, engine_first: bool
) -> None:
    first = await rig.agent()
    manifest = container(options={"network": "none"})
    for instance in ("web~0", "web~1"):
        await rig.want(manifest, instance=instance)
        await rig.until_running(manifest, instance=instance)
    before = await rig.realities()
    await first.crash()
    engine.lose_power()
    if engine_first:
        engine.start()
    await rig.agent()
    if not engine_first:
        await rig.until(lambda r: "does not answer" in r.reason, instance="web~0")
        engine.start()
    for instance, was in before.items():
        told = await rig.until(lambda r: r.phase == "running" and r.restarts == 1, instance=instance)
        assert told.started > was.started
        assert [(end.code, end.at) for end in told.exits] == [(-9, pytest.approx(was.started, abs=5))]
    assert engine.names() == ["farmd..n1..web..0", "farmd..n1..web..1"]


async def test_a_container_that_somebody_removed_is_started_again(rig: Agents, engine: PodmanEngine) -> None:
    await rig.agent()
    await rig.want(container())
    before = await rig.until(lambda r: r.phase == "running")
    engine.remove("farmd..n1..web")
    after = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
    assert after.pid != before.pid
    assert [end.code for end in after.exits] == [-9]


async def test_a_container_that_was_made_and_never_started_is_made_anew(
    rig: Agents, engine: PodmanEngine
) -> None:
    labels = {
        "farmd.node": "n1", "farmd.instance": "web", "farmd.manifest": "f" * 64, "farmd.start": "s0",
        "farmd.started": "1.0", "farmd.restart": "0", "farmd.ports": "{}", "farmd.logs": "1024 1",
    }  # fmt: skip
    words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    engine.run("create", "--name", "farmd..n1..web", *words, IMAGE, "sh", "-c", WAITS)
    await rig.agent()
    manifest = container()
    await rig.want(manifest)
    told = await rig.until_running(manifest)
    assert (told.exits, engine.names()) == ([], ["farmd..n1..web"])
