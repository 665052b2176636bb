"""What every runtime does alike: one suite, on real processes, on real containers and, inside, on systemd."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import shutil
import signal
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from farmd.agent.model import ArtifactConfig
from farmd.agent.pod import Pod
from farmd.agent.runtimes.runtime import Execution
from farmd.agent.secrets import SecretConfig
from store.access import Exec
from store.artifacts import Artifact
from store.containers import Container, File, Mount, OnChange, Secret
from store.manifests import AfterStop, HealthCheck, Init, Logs, Manifest, Port, Restart, Sidecar, Stop
from store.peers import Peer
from tests.age import files, identity, memory_folder, sealed
from tests.agents import FAST, Agents, Running, alive, kill, logged, sha_of
from tests.engine import IMAGE
from tests.fleet import eventually
from tests.integration.test_agent_templates import farm_of
from tests.systemd import INSIDE
from tests.web_servers import serving

pytestmark = pytest.mark.xdist_group("containers")

Make = Callable[..., Manifest]
SERVE = "cd /tmp; mkdir $$; cd $$; echo $FARMD_INSTANCE > index.html; exec busybox httpd -fp $FARMD_PORT_HTTP"
WAITS = "while :; do sleep 0.05; done"


def maker(runtime: str) -> Make:
    """Makes manifests of shell scripts for one runtime."""

    def made(script: str, **fields: Any) -> Manifest:
        given: dict[str, Any] = {
            "id": "web",
            "command": ["/bin/sh", "-c", script],
            "restart": FAST,
            "stop": Stop(grace=0.2),
            "runtime": runtime,
        }
        if runtime == "container":
            given["container"] = Container(image=IMAGE, pull="never")
        return Manifest(**(given | fields))

    return made


RICH = "systemd" if INSIDE in os.environ else "container"
"""The runtime here that knows files, secrets and mounts."""


@pytest.fixture(params=[RICH] if INSIDE in os.environ else ["process", RICH])
def make(request: pytest.FixtureRequest) -> Make:
    return maker(request.param)


async def test_it_starts_is_healthy_answers_and_leaves_nothing(rig: Agents, make: Make, engine: Any) -> None:
    await rig.agent()
    check = HealthCheck(type="http", port="http", interval=0.1, failures=50)
    manifest = make(SERVE, ports={"http": Port()}, health=check)
    index = await rig.want(manifest)
    reality = await rig.until(lambda r: r.health.state == "passing")
    assert (reality.manifest, reality.intent, reality.phase) == (sha_of(manifest), index, "running")
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{reality.ports['http']}/index.html") as answer,
    ):
        assert await answer.text() == "web\n"
    await rig.unwant()
    await rig.until_gone()
    assert not alive(reality)
    assert list((rig.root / "n1" / "instances").iterdir()) == []
    assert engine.names() == []


async def test_its_environment_is_what_its_manifest_says(rig: Agents, make: Make) -> None:
    running = await rig.agent()
    await rig.want(make(f"env; echo end; {WAITS}", env={"COLOUR": "blue"}, ports={"http-admin": Port()}))
    text = await logged(running, "end")
    port = (await rig.until(lambda r: r.phase == "running")).ports["http-admin"]
    wanted = {"COLOUR=blue", "FARMD_NODE=n1", "FARMD_INSTANCE=web", f"FARMD_PORT_HTTP_ADMIN={port}"}
    assert wanted <= set(text.splitlines())
    assert "CONSUL" not in text


async def test_it_has_no_descriptors_but_input_and_output(rig: Agents, make: Make) -> None:
    running = await rig.agent()
    # No list of the folder: that would need one more descriptor.
    script = "for n in $(seq 0 255); do test -e /proc/$$/fd/$n && found=$found,$n; done; echo has $found end"
    await rig.want(make(f"{script}; {WAITS}"))
    assert "has ,0,1,2 end" in (await logged(running, " end")).splitlines()


async def test_a_killed_one_is_started_again_and_its_end_is_told(rig: Agents, make: Make) -> None:
    await rig.agent()
    await rig.want(make(WAITS))
    first = await rig.until(lambda r: r.phase == "running")
    kill(first)
    second = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
    assert [end.code for end in second.exits] == [-9]
    assert second.started > first.started


async def test_one_that_ends_backs_off_with_its_reason(rig: Agents, make: Make) -> None:
    await rig.agent()
    await rig.want(make("exit 3", restart=Restart(initial=600, maximum=600)))
    backing = await rig.until(lambda r: r.phase == "backoff")
    assert ([end.code for end in backing.exits], backing.reason[:18]) == ([3], "exited with code 3")


async def test_one_that_may_end_is_done(rig: Agents, make: Make) -> None:
    await rig.agent()
    await rig.want(make("exit 0", restart=Restart(policy="never")))
    done = await rig.until(lambda r: r.phase == "done")
    assert (done.health.state, [end.code for end in done.exits]) == ("passing", [0])


async def test_r29_what_it_wrote_into_its_result_is_told_with_its_end(rig: Agents, make: Make) -> None:
    await rig.agent()
    await rig.want(make('printf "loss 0.3" > $FARMD_RESULT; exit 3', restart=Restart(policy="never")))
    done = await rig.until(lambda r: r.phase == "done")
    assert [(end.code, end.cause, end.message) for end in done.exits] == [(3, "", "loss 0.3")]


async def test_r29_one_on_hold_starts_with_the_variables_and_peers_of_its_release(
    rig: Agents, make: Make
) -> None:
    running = await rig.agent()
    script = f"env; cat $FARMD_PEERS_FILE; echo; cat $FARMD_HOSTFILE; echo end; {WAITS}"
    manifest = make(script, ports={"job": Port()}, env={"RANK": "<${FARMD_RANK}>"})
    index = await rig.want(manifest, hold=True, vars={"FARMD_RANK": "none"})
    held = await rig.until(lambda r: r.phase == "held")
    assert (held.intent, held.pid, held.started, list(held.ports)) == (index, 0, 0.0, ["job"])
    peers = await rig.tell_peers(Peer("worker", 0, 3, "10.0.0.7", held.ports))
    await rig.want(manifest, vars={"FARMD_RANK": "3"}, peers=peers)
    text = await logged(running, "end")
    told = await rig.until(lambda r: r.phase == "running")
    assert told.ports == held.ports
    assert {"RANK=<3>", "FARMD_RANK=3", "10.0.0.7 slots=1"} <= set(text.splitlines())
    assert f'"rank":3,"address":"10.0.0.7","ports":{{"job":{held.ports["job"]}}}' in text


async def test_r26_the_next_agent_adopts_it_and_its_output_goes_on(rig: Agents, make: Make) -> None:
    first = await rig.agent()
    await rig.want(make(f"echo one; trap 'echo two' USR1; {WAITS}"))
    before = await rig.until(lambda r: r.phase == "running")
    await logged(first, "one")
    await first.crash()
    os.kill(before.pid, signal.SIGUSR1)
    again = await rig.agent()
    text = await logged(again, "two")
    after = await rig.until(lambda r: r.phase == "running")
    assert (after.started, after.pid, text) == (before.started, before.pid, "one\ntwo\n")


async def test_r26_an_end_while_no_agent_ran_is_recorded(rig: Agents, make: Make) -> None:
    first = await rig.agent()
    hour = Restart(initial=3600, maximum=3600)
    await rig.want(make(f"trap 'echo bye; exit 7' USR1; echo up; {WAITS}", restart=hour))
    before = await rig.until(lambda r: r.phase == "running")
    await logged(first, "up")
    await first.crash()
    os.kill(before.pid, signal.SIGUSR1)

    async def ended() -> bool:
        return not alive(before)

    await eventually(ended, what="the end")
    again = await rig.agent()
    told = await rig.until(lambda r: r.phase == "backoff")
    assert [end.code for end in told.exits] == [7]
    assert await logged(again, "bye") == "up\nbye\n"


async def test_r26_one_whose_records_are_lost_is_kept_and_not_started_twice(rig: Agents, make: Make) -> None:
    first = await rig.agent()
    manifest = make(WAITS)
    await rig.want(manifest)
    before = await rig.until(lambda r: r.phase == "running")
    await first.crash()
    shutil.rmtree(rig.root / "n1" / "instances" / "web", ignore_errors=True)
    await rig.agent()
    told = await rig.until(lambda r: r.manifest == sha_of(manifest) and r.phase == "running" and r.intent)
    assert told.pid == before.pid or not alive(before)


async def test_another_manifest_replaces_it_and_keeps_the_port(rig: Agents, make: Make) -> None:
    await rig.agent()
    old, new = (make(WAITS, ports={"http": Port()}, env={"V": version}) for version in "12")
    await rig.want(old)
    before = await rig.until(lambda r: r.phase == "running")
    index = await rig.want(new)
    after = await rig.until(lambda r: r.manifest == sha_of(new) and r.phase == "running")
    assert not alive(before)
    assert (after.ports, after.intent, after.restarts) == (before.ports, index, 0)


async def test_a_stop_is_graceful_first(rig: Agents, make: Make) -> None:
    running = await rig.agent()
    await rig.want(make(f"trap 'echo polite; exit 0' TERM; echo up; {WAITS}", stop=Stop(grace=60)))
    await logged(running, "up")
    other = make("exec sleep 1000")
    await rig.want(other)
    reality = await rig.until_running(other)
    assert reality.exits[-1].code == 0
    assert "polite" in await logged(running, "polite")


async def test_the_last_words_of_a_removed_one_stay_readable(rig: Agents, make: Make) -> None:
    running = await rig.agent()
    script = f"exec 2>/dev/null; trap 'echo bye; exit 1' TERM; echo up; {WAITS}"
    await rig.want(make(script, stop=Stop(grace=60)))
    await logged(running, "up")
    await rig.unwant()
    await rig.until_gone()
    found = running.agent.gone.logs("web")
    assert found is not None
    assert (found[0] / "current.log").read_text() == "up\nbye\n"


async def test_a_stubborn_one_is_killed_after_its_grace(rig: Agents, make: Make) -> None:
    running = await rig.agent()
    await rig.want(make(f"trap '' TERM; echo up; {WAITS}", stop=Stop(grace=0.3)))
    before = await rig.until(lambda r: r.phase == "running")
    await logged(running, "up")
    await rig.unwant()
    await rig.until_gone()
    assert not alive(before)


async def test_a_check_runs_beside_it(rig: Agents, make: Make) -> None:
    await rig.agent()
    inside = ["/bin/sh", "-c", "test -e /tmp/well-$FARMD_PORT_HTTP"]
    check = HealthCheck(type="command", command=inside, interval=0.1, timeout=60, failures=1)
    script = f"trap 'rm /tmp/well-$FARMD_PORT_HTTP' USR1; touch /tmp/well-$FARMD_PORT_HTTP; {WAITS}"
    await rig.want(make(script, health=check, ports={"http": Port()}))
    well = await rig.until(lambda r: r.health.state == "passing")
    os.kill(well.pid, signal.SIGUSR1)
    ill = await rig.until(lambda r: r.health.state == "critical")
    assert (ill.health.reason, ill.started) == ("exit code 1", well.started)


async def test_one_that_goes_on_failing_its_check_is_restarted_and_that_is_told(
    rig: Agents, make: Make
) -> None:
    await rig.agent()
    check = HealthCheck(type="command", command=["false"], interval=0.1, failures=2, restart_after=0.2)
    await rig.want(make(WAITS, health=check, restart=Restart(initial=600, maximum=600)))
    before = await rig.until(lambda r: r.phase == "running")
    backing = await rig.until(lambda r: r.phase == "backoff")
    assert backing.reason == "unhealthy for 0.2 s (health.restart_after): exit code 1"
    assert [end.unhealthy for end in backing.exits] == [True]
    assert not alive(before)


async def test_it_runs_as_its_user(rig: Agents, make: Make) -> None:
    running = await rig.agent()
    manifest = make(f"id -u; {WAITS}")
    user = "web" if manifest.runtime == "container" else "nobody"
    await rig.want(make(f"id -u; {WAITS}", user=user, working_directory="/tmp"))
    assert await logged(running, "\n") == ("1234\n" if user == "web" else "65534\n")


async def test_r28_a_restart_is_one_new_start(rig: Agents, make: Make) -> None:
    await rig.agent()
    manifest = make(WAITS)
    await rig.want(manifest)
    before = await rig.until(lambda r: r.phase == "running")
    await rig.want(manifest, restart=1)
    after = await rig.until(lambda r: r.restart == 1 and r.phase == "running")
    assert (after.started > before.started, after.restarts, alive(before)) == (True, 0, False)


async def test_what_cannot_start_says_why(rig: Agents, make: Make) -> None:
    await rig.agent()
    await rig.want(make("", command=["/no/such/program"]))
    failed = await rig.until(lambda r: r.phase == "failed" and r.reason)
    assert "no such file or directory" in failed.reason.lower()
    assert "\n" not in failed.reason


async def test_its_log_is_limited(rig: Agents, make: Make) -> None:
    running = await rig.agent()
    script = f"i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done; echo end; {WAITS}"
    await rig.want(make(script, logs=Logs(1024, 2)))
    await logged(running, "end")
    files = sorted(path.name for path in running.state.logs("web").glob("current.log*"))
    assert files == ["current.log", "current.log.1", "current.log.2"]
    assert all(path.stat().st_size <= 1024 for path in running.state.logs("web").glob("current.log*"))


async def test_it_sees_its_files_secrets_and_mounts(rig: Agents, tmp_path: Path) -> None:
    running = await rig.agent()
    (tmp_path / "secrets" / "token").write_text("hush")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "note").write_text("shared")
    script = (
        "cat /srv/web.conf /run/secrets/token /srv/shared/note; stat -c ' %a %u' /srv/web.conf;"
        "touch /srv/data/x /srv/memory/x && echo wrote;"
        "touch /srv/web.conf /srv/shared/y 2>/dev/null || echo kept; "
    )
    data = Mount(source="farmd-test-data", target="/srv/data")
    manifest = maker(RICH)(
        script + WAITS,
        files=[File(path="/srv/web.conf", content="port 1\n", uid=1234, mode=0o440)],
        secrets=[Secret(name="token")],
        mounts=[
            Mount(type="bind", source=str(tmp_path / "shared"), target="/srv/shared", read_only=True),
            data,
            Mount(type="tmpfs", target="/srv/memory", size=2**20),
        ],
    )
    await rig.want(manifest)
    assert await logged(running, "kept") == "port 1\nhushshared 440 1234\nwrote\nkept\n"
    await rig.unwant()
    await rig.until_gone()
    # What a volume holds outlives its container or unit.
    await rig.want(maker(RICH)(f"ls /srv/data; echo end; {WAITS}", mounts=[data]))
    assert await logged(running, "end") == "x\nend\n"


async def test_r45_its_rendered_files_change_in_place_and_it_is_told(rig: Agents, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    text = '{% for each in service("hello") %}to {{ each.hostport }}{% endfor %}'

    def pod(**change: Any) -> Manifest:
        return maker(RICH)(
            f"trap 'cat /srv/up.conf; echo \" told\"' HUP; cat /srv/up.conf; echo ' begun'; {WAITS}",
            files=[File(path="/srv/up.conf", template=text, on_change=OnChange(**change))],
            mounts=[Mount(type="bind", source=str(shared), target="/srv/shared")],
        )

    async with farm_of(rig, hello=[("10.0.0.7", 81)]) as farm:
        running = await rig.agent()
        await rig.want(pod(do="signal"))
        await logged(running, "to 10.0.0.7:81 begun")
        began = await rig.until(lambda reality: reality.phase == "running")
        await farm.tell("hello", ("10.0.0.8", 82))
        await logged(running, "to 10.0.0.8:82 told")
        await rig.want(pod(do="command", command=["/bin/sh", "-c", "cp /srv/up.conf /srv/shared/copy"]))
        await logged(running, "to 10.0.0.8:82 begun")
        second = await rig.until(lambda reality: reality.pid not in (0, began.pid))
        await farm.tell("hello", ("10.0.0.9", 83))

        async def copied() -> bool:
            copy = shared / "copy"
            return copy.exists() and copy.read_text() == "to 10.0.0.9:83"

        await eventually(copied, what="what the command copied")
        assert (await rig.realities())["web"].pid == second.pid
        await rig.want(pod(do="restart"))
        await logged(running, "to 10.0.0.9:83 begun")
        await farm.tell("hello", ("10.0.0.10", 84))
        await logged(running, "to 10.0.0.10:84 begun")


async def test_it_sees_its_sealed_secrets_which_are_in_memory_alone(rig: Agents, tmp_path: Path) -> None:
    recipient, name = identity(tmp_path / "key"), "shop/db@1"
    owner = {"user": "1234:1235"} if RICH == "container" else {"secret_env": {"PASSWORD": name}}
    manifest = maker(RICH)(
        'cat /run/secrets/db; stat -c " %a %u:%g" /run/secrets/db; stat -f -c %T /run/secrets/db;'
        f' cat /srv/other.key; echo " ${{PASSWORD:-none}} end"; {WAITS}',
        secrets=[
            Secret(name="db", secret=name, mode=0o400),
            Secret(name="other", secret=name, path="/srv/other.key", mode=0o444),
        ],
        sealed={name: sealed(b"canarycontract4x7q9z", [recipient])},
        **owner,
    )
    with memory_folder() as memory:
        config = SecretConfig(
            identities=(str(tmp_path / "key"),), folder=str(memory), state_dir=rig.root / "n1"
        )
        running = await rig.agent(secrets=config)
        await rig.want(manifest)
        value, who = "canarycontract4x7q9z", "1234:1235" if RICH == "container" else "0:0"
        variable = "none" if RICH == "container" else value
        told = await logged(running, "end")
        assert told == f"{value} 400 {who}\ntmpfs\n{value} {variable} end\n"
        assert len(files(memory)) == 2
        kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "current.log"]
        assert not [path for path in kept if value.encode() in path.read_bytes()]
        await rig.unwant()
        await rig.until_gone()
        assert files(memory) == []


async def test_it_finds_its_artifacts_and_cannot_change_them(rig: Agents) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("etc/conf", "unpacked\n")
    content = {"/tree": made.getvalue(), "/run": b"#!/bin/sh\necho it runs\n"}

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=content[request.path])

    def artifact(name: str, **fields: Any) -> Artifact:
        digest = hashlib.sha256(content[f"/{name}"]).hexdigest()
        return Artifact(source=f"{address}/{name}", sha256=digest, **fields)

    script = (
        "cat /srv/app/etc/conf; /srv/bin/run; touch /srv/app/x /srv/app/etc/conf 2>/dev/null || echo kept; "
    )
    allow = ("local-sources",)
    rig.container = rig.container and replace(rig.container, allow=allow)
    rig.systemd = rig.systemd and replace(rig.systemd, allow=allow)
    async with serving(answer) as address:
        running = await rig.agent(artifacts=ArtifactConfig(allow=allow))
        tree = artifact("tree", unpack="zip", to="/srv/app")
        program = artifact("run", to="/srv/bin/run", mode=0o755)
        await rig.want(maker(RICH)(script + WAITS, artifacts=[tree, program]))
        assert await logged(running, "kept") == "unpacked\nit runs\nkept\n"


async def test_several_instances_have_names_of_their_own(rig: Agents, engine: Any) -> None:
    await rig.agent()
    manifest = maker(RICH)(WAITS)
    for instance in ("web~0", "web~1"):
        await rig.want(manifest, instance=instance)
        await rig.until_running(manifest, instance=instance)
    names = [name.removesuffix(".service") for name in engine.names()]
    assert names == ["farmd..n1..web..0", "farmd..n1..web..1"]


async def test_r11_the_presence_names_what_the_node_can_do(rig: Agents, tmp_path: Path) -> None:
    await rig.agent()
    runtime = f"runtime.{RICH}"

    async def named() -> list[str]:
        presence = await rig.presence()
        assert presence is not None
        return presence[0].features if runtime in presence[0].features else []

    found = await eventually(named, what="the feature")
    told = [feature for feature in found if feature.startswith(("runtime.", "allow."))]
    assert told == ["runtime.process", runtime, f"allow.{tmp_path}/shared"]


async def test_r39_it_leaves_by_its_command_before_it_gets_the_signal(
    rig: Agents,
    make: Make,
    engine: Any,
) -> None:
    running = await rig.agent()
    mark = "/tmp/leaves-$FARMD_PORT_HTTP"  # in the workload's view, which the command shares
    manifest = make(
        "trap 'echo ended; exit 0' TERM; "
        f"while :; do test -e {mark} && echo asked && rm {mark}; sleep 0.05; done",
        ports={"http": Port()},
        stop=Stop(
            grace=600,
            command=["/bin/sh", "-c", f"touch {mark}; while [ -e {mark} ]; do sleep 0.05; done"],
            command_timeout=60,
        ),
    )
    await rig.want(manifest)
    before = await rig.until_running(manifest)
    await rig.want(manifest, restart=1)
    await rig.until(lambda r: r.restart == 1 and r.phase == "running")
    assert not alive(before)
    log = await logged(running, "ended")
    assert [word for word in log.split() if word in ("asked", "ended")] == ["asked", "ended"]


async def ran(
    running: Running, script: str, typed: bytes = b"", *, tty: bool = False
) -> tuple[int, str, str]:
    """How a person's command in the pod ended, and what it wrote."""
    execution = await begun(running, script, tty=tty)
    output = {1: b"", 2: b""}

    async def send(stream: int, data: bytes) -> None:
        output[stream] += data

    try:
        await execution.write(typed)
        await execution.close_input()
        _, code = await asyncio.gather(execution.pump(send), execution.wait())
        return code, output[1].decode(), output[2].decode()
    finally:
        await execution.end()


async def begun(running: Running, script: str, *, tty: bool = False) -> Execution:
    async def up() -> Pod | None:
        found = running.agent.pods.get("web")
        return found if found is not None and found.identity is not None else None

    pod = await eventually(up, what="the agent's knowledge of what it started")
    assert pod.identity is not None
    assert pod.manifest is not None
    wanted = Exec(command=("/bin/sh", "-c", script), tty=tty, term="vt100")
    runtime = running.agent.runtimes.of(pod.identity.runtime)
    return await runtime.execute(pod.identity, pod.manifest, wanted, {})


async def test_a_persons_command_has_what_the_workload_has(rig: Agents, make: Make) -> None:
    running = await rig.agent()
    await rig.want(make(f"pwd; id -u; echo end; {WAITS}", env={"COLOUR": "blue"}))
    place, user, _ = (await logged(running, "end")).split()
    script = "pwd; id -u; echo $COLOUR $FARMD_INSTANCE; cat; echo no >&2; exit 9"
    told = (9, f"{place}\n{user}\nblue web\ntyped", "no\n")
    assert await ran(running, script, b"typed") == told
    code, shown, _ = await ran(
        running, "stty -a | head -1; echo $TERM; tty; test -t 0 && test -t 1", tty=True
    )
    assert code == 0
    assert "vt100" in shown
    assert (await ran(running, "kill -9 $$"))[0] in {-9, 137}
    assert (await rig.until(lambda r: True)).restarts == 0


async def test_nothing_that_a_persons_command_started_outlives_it(rig: Agents, make: Make) -> None:
    running = await rig.agent()
    await rig.want(make(WAITS))
    await rig.until(lambda r: r.phase == "running")
    spawn = "trap '' HUP; sleep 4711 & (setsid sleep 4711 &); "
    assert await ran(running, spawn + "echo done") == (0, "done\n", "")
    assert not processes("sleep 4711")
    execution = await begun(running, spawn + "wait")

    async def three() -> bool:
        return len(processes("sleep 4711")) == 2

    await eventually(three, what="its processes")
    await execution.end()
    assert not processes("sleep 4711")


def processes(line: str) -> list[str]:
    """The processes of this very command line, of all namespaces."""
    wanted, found = line.encode().replace(b" ", b"\0") + b"\0", []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [each.parent.name] if each.read_bytes() == wanted else []
    return found


async def test_r43_what_runs_around_it_shares_its_variables_and_ends_with_it(
    rig: Agents, tmp_path: Path
) -> None:
    runtime = "systemd" if RICH == "systemd" else "process"
    running = await rig.agent()
    manifest = maker(runtime)(
        "echo main; exec sleep 1000",
        init=[Init(command=["/bin/sh", "-c", "echo init $FARMD_INSTANCE"])],
        sidecars=[
            Sidecar(name="side", command=["/bin/sh", "-c", "echo side $FARMD_INSTANCE; exec sleep 1000"])
        ],
        after_stop=[AfterStop(command=["/bin/sh", "-c", f"echo after $FARMD_INSTANCE > {tmp_path}/after"])],
    )
    await rig.want(manifest)
    told = await rig.until(lambda r: r.phase == "running" and r.sidecars and r.sidecars["side"].runs)
    assert await logged(running, "main") == "init web\nmain\n"
    side = running.state.logs("web") / "side" / "current.log"

    async def wrote() -> bool:
        return side.read_text() == "side web\n"

    await eventually(wrote, what="the sidecar's output")
    [identity] = rig.identities()
    children = Path(f"/proc/{identity.shim}/task/{identity.shim}/children").read_text().split()
    assert len(children) == 2
    await rig.unwant()
    await rig.until_gone()
    assert (tmp_path / "after").read_text() == "after web\n"
    assert not alive(told)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
