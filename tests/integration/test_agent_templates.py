"""Files that an agent renders (R45): at the start, at each change of endpoints, and after what goes wrong."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from farmd.agent import endpoints, templates
from store import codec
from store.containers import File, OnChange
from store.farms import Member
from store.manifests import Manifest, Port
from tests.agents import Agents, Running, shell
from tests.certificates import authority, issue
from tests.fleet import eventually
from tests.web_servers import serving

UPSTREAM = """{% for each in service("hello") -%}
server {{ each.hostport }};
{% else -%}
server 127.0.0.1:9 down;
{% endfor -%}
level {{ env.LEVEL }} on {{ env.FARMD_NODE }}:{{ env.FARMD_PORT_HTTP }}
"""
TELL = (
    'trap "echo told; cat $FARMD_FILES/up.conf" HUP; cat "$FARMD_FILES/up.conf"; echo begun;'
    " while :; do sleep 0.05; done"
)


@dataclass
class Farm:
    """What a farm tells of services; a request waits until it tells something else."""

    told: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    turn: asyncio.Condition = field(default_factory=asyncio.Condition)
    requests: int = 0
    number: int = 1

    async def tell(self, service: str, *endpoints: tuple[str, int]) -> None:
        async with self.turn:
            self.told[service] = list(endpoints)
            self.number += 1
            self.turn.notify_all()

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        name = request.path.split("/")[3]
        async with self.turn:
            await self.turn.wait_for(lambda: request.query["index"] != str(self.number))
        if name not in self.told:
            return web.json_response({"error": {"code": "not_found"}}, status=404)
        items = [
            {"node": "n", "instance": "hello", "owner": "rcs/1", "address": address, "port": port}
            for address, port in self.told[name]
        ]
        return web.json_response({"index": self.number, "items": items})


@asynccontextmanager
async def farm_of(
    rig: Agents, tls: ssl.SSLContext | None = None, **told: list[tuple[str, int]]
) -> AsyncIterator[Farm]:
    """A farm that agents find where farms are."""
    farm = Farm(told)
    async with serving(farm.answer, tls=tls) as address:
        await rig.client.put(
            f"{rig.keys.tree('farms')}f1", codec.encode(Member(id="f1", version="1", address=address))
        )
        yield farm


def templated(text: str = UPSTREAM, script: str = TELL, **fields: Any) -> Manifest:
    change = fields.pop("on_change", OnChange(do="signal"))
    file = File(path="up.conf", template=text, on_change=change)
    given: dict[str, Any] = {"env": {"LEVEL": "info"}, "ports": {"http": Port()}, "files": [file]}
    return shell(script, **{**given, **fields})


def rendered(running: Running, instance: str = "web") -> str:
    """What the pod's file holds now."""
    (path,) = running.state.rendered(instance).glob("*/up.conf")
    return path.read_text()


async def lines(running: Running, *wanted: str) -> None:
    """Wait until the pod wrote these lines, in this order, as its last ones."""

    async def told() -> bool:
        text = "".join(path.read_text() for path in sorted(running.state.logs("web").glob("*.log*")))
        return [line for line in text.splitlines() if line in wanted][-len(wanted) :] == list(wanted)

    await eventually(told, what=f"the lines {wanted}")


async def test_r45_a_pod_is_told_of_each_change_and_keeps_its_process(rig: Agents) -> None:
    async with farm_of(rig, hello=[("10.0.0.7", 81)]) as farm:
        running = await rig.agent()
        presence = await rig.presence()
        assert presence is not None
        assert {"templates.1", "files.process"} <= set(presence[0].features)
        pod = templated()
        await rig.want(pod)
        told = await rig.until_running(pod)
        await lines(running, "server 10.0.0.7:81;", "begun")
        assert f"level info on n1:{told.ports['http']}\n" in rendered(running)
        other = templated(id="other")
        await rig.want(other, instance="other")
        await rig.until(lambda reality: reality.phase == "running", instance="other")
        await farm.tell("hello", ("10.0.0.8", 82), ("fd00::1", 83))
        await lines(running, "told", "server 10.0.0.8:82;", "server [fd00::1]:83;")
        await farm.tell("hello")
        await lines(running, "told", "server 127.0.0.1:9 down;")
        assert (await rig.realities())["web"].pid == told.pid
        assert farm.requests <= 5  # one at a time for both pods


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ env.NONE }}", "found no variable or field 'NONE'"),
        ('{{ service("none") }}', "service 'none' does not exist"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "1 s of CPU time"),
        ("{{ 'x' * 10 ** 9 }}", "too much memory"),
        ("{% for a in range(9999) %}{{ 'x' * 100 }}{% endfor %}", "more than 131072 bytes"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ ''.__class__ }}", "unsafe"),
    ],
    ids=lambda value: value[:20],
)
async def test_r45_a_template_that_cannot_be_rendered_stops_no_former_workload(
    rig: Agents, text: str, why: str
) -> None:
    async with farm_of(rig):
        await rig.agent()
        former = shell("exec sleep 1000")
        await rig.want(former)
        served = await rig.until_running(former)
        await rig.want(templated(text))
        refused = await rig.until(lambda reality: why in reality.reason, what=why)
        assert (refused.pid, refused.phase) == (served.pid, "running")
        assert "files: up.conf: template: " in refused.reason


async def test_r45_an_error_leaves_the_last_file_and_is_told_until_it_is_over(
    rig: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(endpoints, "ABSENT_SECONDS", 0.2)
    async with farm_of(rig, hello=[("10.0.0.7", 81)]) as farm:
        running = await rig.agent()
        pod = templated()
        await rig.want(pod)
        began = await rig.until_running(pod)
        kept = rendered(running)
        async with farm.turn:
            del farm.told["hello"]
            farm.number += 1
            farm.turn.notify_all()
        gone = await rig.until(lambda reality: "does not exist" in reality.reason)
        assert (gone.phase, gone.pid, rendered(running)) == ("running", began.pid, kept)
        await farm.tell("hello", ("10.0.0.8", 82))
        await rig.until(lambda reality: not reality.reason)
        await lines(running, "told", "server 10.0.0.8:82;")


@pytest.mark.parametrize("written", [False, True], ids=["before it wrote", "before it told"])
async def test_r45_what_an_agent_that_died_did_not_tell_the_next_one_tells(
    rig: Agents, written: bool
) -> None:
    async with farm_of(rig, hello=[("10.0.0.7", 81)]) as farm:
        first = await rig.agent()
        pod = templated()
        await rig.want(pod)
        began = await rig.until_running(pod)
        await lines(first, "server 10.0.0.7:81;", "begun")
        await first.crash()
        if written:
            (folder,) = first.state.rendered("web").iterdir()
            (folder / ".0.changed").touch()
        else:
            await farm.tell("hello", ("10.0.0.8", 82))
        second = await rig.agent()
        await lines(second, "told", f"server {'10.0.0.7:81' if written else '10.0.0.8:82'};")
        assert (await rig.until_running(pod)).pid == began.pid


async def test_r45_a_change_restarts_the_pod_runs_a_command_or_does_nothing_as_the_file_says(
    rig: Agents,
) -> None:
    async with farm_of(rig, hello=[("10.0.0.7", 81)]) as farm:
        running = await rig.agent()
        pod = templated(on_change=OnChange(do="restart"))
        await rig.want(pod)
        began = await rig.until_running(pod)
        await farm.tell("hello", ("10.0.0.8", 82))
        again = await rig.until(lambda reality: reality.pid not in (0, began.pid))
        assert (again.restarts, "10.0.0.8:82" in rendered(running)) == (began.restarts + 1, True)
        assert not again.reason
        held = "restarts for it at most every 10 s"
        await farm.tell("hello", ("10.0.0.9", 83))
        await rig.until(lambda reality: held in reality.reason, what=held)
        await farm.tell("hello", ("10.0.0.8", 82))
        calm = await rig.until(lambda reality: not reality.reason)
        assert (calm.pid, calm.restarts) == (again.pid, again.restarts)
        command = OnChange(do="command", command=["/bin/sh", "-c", 'cp "$FARMD_FILES/up.conf" copy'])
        pod = templated(on_change=command)
        await rig.want(pod)
        began = await rig.until_running(pod)
        await farm.tell("hello", ("10.0.0.9", 83))

        async def copied() -> bool:
            copy = running.state.work("web") / "copy"
            return copy.exists() and "10.0.0.9:83" in copy.read_text()

        await eventually(copied, what="what the command copied")
        assert (await rig.realities())["web"].pid == began.pid


async def test_r45_pods_whose_template_asks_for_their_own_service_do_not_restart_one_another_for_ever(
    rig: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "RESTART_SECONDS", 0.5)
    monkeypatch.setattr(templates, "LONGEST_SECONDS", 1000.0)
    async with farm_of(rig, hello=[("10.0.0.7", 81)]) as farm:
        await rig.agent()
        pod = templated(on_change=OnChange(do="restart"))
        await rig.want(pod)
        seen = await rig.until_running(pod)
        for number in range(1, 5):  # what a farm tells after each restart
            await farm.tell("hello", ("10.0.0.7", 1000 + number))
            pid = seen.pid
            seen = await rig.until(lambda reality, pid=pid: reality.pid not in (0, pid))  # type: ignore[misc]
        await farm.tell("hello", ("10.0.0.7", 81))
        await rig.until(lambda reality: "restarts for it at most every 4 s" in reality.reason)


async def test_r45_a_farm_is_asked_over_tls_only_if_its_certificate_is_trusted_and_why_not_is_told(
    rig: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "FIRST_SECONDS", 3.0)
    for name in ("ca", "other"):
        authority(tmp_path, name)
    issue(tmp_path, "farm", "IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "farm.pem", tmp_path / "farm.key")
    trusted = tmp_path / "trusted.pem"
    async with farm_of(rig, tls, hello=[("10.0.0.7", 81)]):
        running = await rig.agent(farm_ca=str(trusted))
        await rig.want(templated())
        await rig.until(lambda reality: f"agent.farm_ca: found '{trusted}' (No such file" in reality.reason)
        trusted.write_text("no certificate")
        await rig.until(lambda reality: "agent.farm_ca: found no certificates in" in reality.reason)
        shutil.copy(tmp_path / "other.pem", trusted)
        refused = await rig.until(lambda reality: "its certificate is refused: " in reality.reason)
        assert "; agent.farm_ca names the authorities of farms" in refused.reason
        assert "\n" not in refused.reason
        shutil.copy(tmp_path / "ca.pem", trusted)  # it is read again without a restart
        await lines(running, "server 10.0.0.7:81;", "begun")


async def test_r45_endpoints_that_no_farm_tells_any_more_stay_and_that_is_told(
    rig: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(endpoints, "SILENT_SECONDS", 0.5)
    pod = templated()
    async with farm_of(rig, hello=[("10.0.0.7", 81)]):
        running = await rig.agent()
        await rig.want(pod)
        began = await rig.until_running(pod)
        kept = rendered(running)
    alone = await rig.until(
        lambda reality: "no farm tells the endpoints of service 'hello'" in reality.reason
    )
    assert "Connection refused; they have the last ones" in alone.reason
    assert (alone.phase, alone.pid, rendered(running)) == ("running", began.pid, kept)
    async with farm_of(rig, hello=[("10.0.0.8", 82)]):
        await lines(running, "told", "server 10.0.0.8:82;")
        await rig.until(lambda reality: not reality.reason)
