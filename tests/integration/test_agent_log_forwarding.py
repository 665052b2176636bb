"""An agent sends what pods write to a syslog server: across its own end, and to the pod's last words."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from farmd.agent.forwarding.forwarder import Forwarder
from store.manifests import Logs, Sidecar
from store.reality import Forwarded
from tests.agents import AgentProcess, Agents, shell
from tests.fleet import eventually
from tests.ports import free_ports


class Server:
    """A syslog server by TCP; ``texts`` are the lines that came."""

    def __init__(self) -> None:
        self.data = b""

    @property
    def texts(self) -> list[bytes]:
        return [each.partition(b"] ")[2] for each in self.messages]

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while (end := self.data.find(b" ", at)) >= 0:
            begin, at = end + 1, end + 1 + int(self.data[at:end])
            found.append(self.data[begin:at])
        return found

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.data += data
        writer.close()


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[Server, str]]:
    found = Server()
    listener = await asyncio.start_server(found.take, "127.0.0.1", 0)
    async with listener:
        yield found, f"syslog://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


async def test_output_goes_to_syslog_across_a_killed_agent_and_the_end_of_its_pod(rig: Agents) -> None:
    async with listening() as (server, to):
        script = (
            "exec 2>/dev/null; trap 'echo bye; exit' TERM; echo first; until [ -e go ]; do sleep 0.02; done;"
            " echo second; touch told; while :; do sleep 0.05; done"
        )
        talker = shell(script, logs=Logs(to=[to]))
        await rig.want(talker)
        async with AgentProcess(rig) as agent:
            await rig.until_running(talker)
            await eventually(lambda: _has(server, b"first"), what="the first line")
            head = server.messages[0].decode()
            assert ' n1 web web - [farmd@32473 pod="web" owner="web" node="n1"] first' in head
            await agent.end(signal.SIGKILL)
        work = rig.root / "n1/instances/web/work"
        (work / "go").touch()

        async def told() -> bool:
            return (work / "told").exists()

        await eventually(told, what="output without an agent")
        async with AgentProcess(rig) as agent:
            await eventually(lambda: _has(server, b"second"), what="what was written without an agent")
            await rig.unwant()
            await rig.until_gone()
            await eventually(lambda: _has(server, b"bye"), what="the last words")
            assert await agent.end(signal.SIGTERM) == 0
        assert [text for text in server.texts if text != b"first"] == [b"second", b"bye"]


async def test_a_node_sends_by_its_setting_and_to_listed_servers_alone(rig: Agents) -> None:
    async with listening() as (server, to):
        running = await rig.agent(log_to=(to,), log_hosts=("127.0.0.1",))
        await rig.want(shell("echo mine; exec sleep 1000"))
        other = shell("echo other; exec sleep 1000", logs=Logs(to=["syslog://logs.example:514"]))
        quiet = shell("echo quiet; exec sleep 1000", logs=Logs(to=["file"]))
        await rig.want(other, instance="other")
        await rig.want(quiet, instance="quiet")
        await eventually(lambda: _has(server, b"mine"), what="the pod's output")

        async def refused() -> list[Forwarded]:
            return running.agent.forwarder.of("other")

        (found,) = await eventually(refused, what="the refusal")
        assert found.problem == "agent.log_hosts of this node does not list logs.example"
        assert running.agent.forwarder.of("quiet") == []
        (mine,) = running.agent.forwarder.of("web")
        assert (mine.to, mine.sent, mine.lost, mine.problem) == (to, 5, 0, "")
        assert server.texts == [b"mine"]


async def test_a_sidecar_has_its_own_output_there(rig: Agents) -> None:
    async with listening() as (server, to):
        await rig.agent()
        shipper = Sidecar(name="shipper", command=["/bin/sh", "-c", "echo beside; exec sleep 1000"])
        pod = shell("echo main; exec sleep 1000", logs=Logs(to=[to]), sidecars=[shipper])
        await rig.want(pod)
        await eventually(lambda: _has(server, b"beside"), what="the sidecar's output")
        await eventually(lambda: _has(server, b"main"), what="the pod's output")
        told = {each.partition(b"] ")[2]: b'process="shipper"' in each for each in server.messages}
        assert told == {b"beside": True, b"main": False}


async def test_the_last_output_of_a_sidecar_that_is_gone_is_sent(rig: Agents) -> None:
    (port,) = free_ports(1)
    running = await rig.agent()
    forwarder, logs = running.agent.forwarder, Logs(to=[f"syslog://127.0.0.1:{port}"])
    shipper = Sidecar(name="shipper", command=["/bin/sh", "-c", "echo beside; exec sleep 1000"])
    await rig.want(shell("echo main; exec sleep 1000", logs=logs, sidecars=[shipper]))
    await rig.until(lambda reality: reality.phase == "running")
    written = running.state.logs("web") / "shipper" / "current.log"
    await eventually(lambda: _waits(forwarder, written), what="output that nobody takes")
    await rig.want(shell("echo again; exec sleep 1000", logs=logs))

    async def gone() -> bool:
        return not any(each.process for each in forwarder.of("web"))

    await eventually(gone, what="the version without the sidecar")
    found = Server()
    async with await asyncio.start_server(found.take, "127.0.0.1", port):
        await eventually(lambda: _has(found, b"beside"), what="the sidecar's output")
        await eventually(lambda: _has(found, b"again"), what="the pod's output")


async def _waits(forwarder: Forwarder, written: Path) -> bool:
    refused = [each.problem for each in forwarder.of("web") if each.process == "shipper"]
    return refused == ["Connection refused"] and written.exists() and b"beside" in written.read_bytes()


async def _has(server: Server, text: bytes) -> bool:
    return text in server.texts
