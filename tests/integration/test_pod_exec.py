"""``farmctl pod exec`` on an agent's process: commands in pods by one-time keys alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from farmd.agent.execute import MOST
from farmd.agent.forward import MOST as CONNECTIONS
from farmd.commands import one_time
from farmd.commands.mutation import Call
from farmd.runtime.clock import SystemIds
from farmd.runtime.streams import PIECE, STDIN, WINDOW
from store import access, codec
from store.access import AccessRecord, Exec
from store.manifests import Manifest
from tests.agents import CLOCK, Agents, shell, web
from tests.farmctl import Farmctl, Result
from tests.fleet import eventually
from tests.processes import Program

ME = os.getpid()
SLEEPER = shell(f"exec sleep 5000.{ME}", env={"GREETING": "hello"})
PATH = "/v1/exec/web"


@dataclass
class Fleet:
    """An agent's process with a pod, and farmctl."""

    rig: Agents
    agent: Program
    farmctl: Farmctl
    url: str
    call: Call

    async def ctl(self, *words: str, stdin: str = "") -> Result:
        return await asyncio.to_thread(self.farmctl, *words, stdin=stdin)

    async def key(
        self, *command: str, node: str = "n1", instance: str = "web", port: int = 0
    ) -> dict[str, str]:
        wanted = Exec(command=command, port=port)
        path = f"/v1/exec/{instance}"
        found = await one_time.grant(self.call, node, instance, path, "pod.exec", wanted)
        return found.headers

    async def ends(self, count: int) -> list[AccessRecord]:
        """What the agent noted of this many commands, once all of them have ended."""

        async def over() -> list[AccessRecord]:
            page = await self.rig.client.list(self.rig.keys.accesses(access.ENDS, "n1"))
            found = [codec.decode(AccessRecord, raw.decoded(), raw.key) for raw in page.items]
            return found if len(found) == count and all(note.ended for note in found) else []

        noted: list[AccessRecord] = await eventually(over, what=f"the ends of {count} commands")
        return noted

    @contextlib.asynccontextmanager
    async def forwarded(
        self, http: aiohttp.ClientSession, port: int
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        wanted = Exec(port=port)
        found = await one_time.grant(self.call, "n1", "web", PATH, "pod.port-forward", wanted)
        async with http.ws_connect(self.url + PATH, headers=found.headers) as socket:
            yield socket

    async def status(self, headers: dict[str, str], path: str = PATH) -> tuple[int, str]:
        """How the agent answers who asks for a command; 101 if it runs one."""
        async with aiohttp.ClientSession() as http:
            try:
                async with http.ws_connect(self.url + path, headers=headers):
                    return 101, ""
            except aiohttp.WSServerHandshakeError as error:
                return error.status, (error.headers or {}).get(access.REFUSED, "")


def program(rig: Agents, folder: Path, **variables: str) -> Program:
    return Program(
        "agent",
        *("--port", "0"),
        folder=folder,
        **{
            "CONSUL_HTTP_ADDR": rig.address,
            "FARMD_STORE__PREFIX": rig.keys.prefix,
            "FARMD_AGENT__STATE_DIR": str(folder / "n1"),
            "FARMD_AGENT__NODE": "n1",
            "FARMD_AGENT__SHARE_USER": "true",
            "FARMD_AGENT__EXEC": "true",
            **variables,
        },
    )


@contextlib.asynccontextmanager
async def fleet_of(
    rig: Agents, folder: Path, pod: Manifest = SLEEPER, **variables: str
) -> AsyncIterator[Fleet]:
    with program(rig, folder, **variables) as agent:
        port = (await asyncio.to_thread(agent.wait_for, "web.listening"))["port"]
        await asyncio.to_thread(agent.wait_for, "process.ready")
        await rig.want(pod)
        await rig.until_running(pod)
        call = Call(rig.client, rig.keys, CLOCK, SystemIds(), "user/test@here")
        yield Fleet(rig, agent, Farmctl(rig.address, rig.keys.prefix), f"http://127.0.0.1:{port}", call)


@pytest.fixture
async def fleet(rig: Agents, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet_of(rig, tmp_path) as made:
        yield made


def lives(words: str, *, whole: bool = False) -> list[str]:
    """The processes whose command line has these words, or is just that."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = each.read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
            found += [each.parent.name] if line == words or (words in line and not whole) else []
    return found


async def dead(word: str) -> None:
    async def none() -> bool:
        return not lives(word)

    await eventually(none, what=f"the end of {word}")


async def test_a_command_has_the_pods_environment_and_folder_its_input_and_its_exit_code(
    fleet: Fleet,
) -> None:
    script = 'echo "$GREETING $FARMD_INSTANCE"; pwd; cat; echo to stderr >&2; exit 7'
    done = await fleet.ctl("pod", "exec", "n1/web", "-i", "--", "sh", "-c", script, stdin="typed\n")
    work = done.out.splitlines()[1]
    assert (done.code, done.out, done.err) == (7, f"hello web\n{work}\ntyped\n", "to stderr\n")
    assert "/instances/web/" in work
    assert (await fleet.ctl("pod", "exec", "web", "--", "sh", "-c", "kill -TERM $$")).code == 143
    rows = (await fleet.ctl("audit", "list", "-o", "json")).json["items"]
    assert [(row["action"], row["id"]) for row in rows] == [("pod.exec", "n1/web")] * 2
    assert rows[-1]["after"]["command"].startswith("sh -c 'echo")
    ends = await fleet.ends(2)
    assert sorted(note.how["code"] for note in ends) == [-15, 7]
    assert {(note.instance, note.exec.action, note.how.get("error")) for note in ends} == {
        ("web", "pod.exec", None)
    }
    assert {row["actor"] for row in rows} == {note.by for note in ends}
    assert (await fleet.rig.client.keys(fleet.rig.keys.accesses(access.EXEC))).items == []


async def test_r42_one_key_is_one_command_for_its_pod_node_and_purpose(fleet: Fleet) -> None:
    headers = await fleet.key("sleep", f"5001.{ME}")
    answers = await asyncio.gather(*(fleet.status(headers) for _ in range(5)))
    assert sorted(status for status, _ in answers) == [101, *[403] * 4]
    assert (await fleet.status(headers))[1] == "Farmd-Key: the key was used"
    logs = await one_time.header(fleet.call, "n1", "web", PATH, {})
    for other, why in (
        ({}, (401, "a one-time key is needed: farmctl pod exec brings one")),
        ({access.HEADER: access.made()}, (403, "Farmd-Key: the key is unknown or was already used")),
        (await fleet.key("true", node="n2"), (403, "Farmd-Key: the key is unknown or was already used")),
        (logs, (403, "Farmd-Key: the key is unknown or was already used")),
        (await fleet.key("true", instance="other"), (403, "Farmd-Key: the key is for another request")),
        (await fleet.key(), (400, "command: found none, expected one")),
        (await fleet.key("a\0b"), (400, "command: found a NUL in it or in the terminal's name")),
        (await fleet.key(port=65536), (400, "port: found 65536, expected one of 1 to 65535")),
        (await fleet.key(port=-1), (400, "port: found -1, expected one of 1 to 65535")),
        (await fleet.key("no-such"), (409, "command no-such: No such file or directory")),
    ):  # fmt: skip
        assert await fleet.status(other) == why
    assert (await fleet.status(await fleet.key("true", instance="gone"), "/v1/exec/gone"))[0] == 404
    async with aiohttp.ClientSession() as http:
        proxied = {**(await fleet.key("true")), "X-Forwarded-For": "192.0.2.1"}
        async with http.get(fleet.url + PATH, headers=proxied) as answer:
            assert (answer.status, (await answer.json())["error"]["message"]) == (
                403,
                "the connection has no TLS: set web.tls_cert and web.tls_key of this agent",
            )
        async with http.get(fleet.url + PATH, headers=await fleet.key("true")) as answer:
            assert answer.status == 426
    await dead(f"sleep 5001.{ME}")


async def test_what_a_command_started_ends_with_its_connection_and_with_the_agent(
    fleet: Fleet, rig: Agents, tmp_path: Path
) -> None:
    nap = f"sleep 5002.{ME}"
    script = f"trap '' HUP INT; {nap} & setsid {nap} & (setsid sh -c '{nap}' &) ; echo on; wait"
    for cut in ("farmctl", "agent"):
        process = fleet.farmctl.start("pod", "exec", "web", "--", "sh", "-c", script)
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "on\n"
        assert len(lives(f"sleep 5002.{ME}")) >= 3
        if cut == "farmctl":
            process.kill()
        else:
            fleet.agent.process.kill()
        await dead(f"sleep 5002.{ME}")
        _, err = await asyncio.to_thread(process.communicate)
        assert cut == "farmctl" or "the connection ended before the command did" in err
        if cut == "farmctl":
            assert [note.how["error"] for note in await fleet.ends(1)] == ["the connection was cut"]
    assert len(lives(f"sleep 5000.{ME}")) == 1
    with program(rig, tmp_path):  # what a killed agent left is the next one's to note
        found = sorted(str(note.how["error"]) for note in await fleet.ends(2))
    assert found == ["the agent ended", "the connection was cut"]


async def test_an_agent_runs_no_commands_unless_its_administrator_says_so(
    rig: Agents, tmp_path: Path
) -> None:
    async with fleet_of(rig, tmp_path, FARMD_AGENT__EXEC="false") as fleet:
        done = await fleet.ctl("pod", "exec", "web", "--", "true")
        assert (done.code, done.err.splitlines()[0]) == (
            7,
            "farmctl: node 'n1': its agent runs no commands of people",
        )
        status, why = await fleet.status(await fleet.key("true"))
        assert (status, why.split(":")[0]) == (403, "agent.exec")


CATCHES = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"


async def test_an_interrupt_goes_to_the_command_with_and_without_a_terminal(fleet: Fleet) -> None:
    words = ("pod", "exec", "web", "-it", "--", "sh", "-c")
    typed = await asyncio.to_thread(
        fleet.farmctl.on_terminal, *words, f"stty size; {CATCHES}", answer="\x03", at="ready"
    )
    assert (typed.code, typed.out.splitlines()[-1]) == (5, "^Ccaught")
    process = fleet.farmctl.start("pod", "exec", "web", "--", "sh", "-c", CATCHES)
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
    process.send_signal(signal.SIGINT)
    assert (await asyncio.to_thread(process.communicate))[0] == "caught\n"
    assert process.returncode == 5
    piped = fleet.farmctl.start("pod", "exec", "web", "--", "yes")
    assert piped.stdout is not None
    assert await asyncio.to_thread(piped.stdout.readline) == "y\n"
    piped.stdout.close()
    piped.stdout = None
    assert (await asyncio.to_thread(piped.communicate))[1] == ""
    assert piped.returncode == 0
    refused = await fleet.ctl(*words, "true")
    assert (refused.code, refused.err.splitlines()[0]) == (
        2,
        "farmctl: --tty: found no terminal, expected one, and --stdin (-it)",
    )


async def test_output_and_input_wait_for_their_readers_and_the_agent_does_not_grow(fleet: Fleet) -> None:
    size = 64 * 2**20
    process = fleet.farmctl.start("pod", "exec", "web", "--", "sh", "-c", f"head -c {size} /dev/zero")
    assert process.stdout is not None

    async def waits() -> bool:
        """All that is between the command and this reader is full."""
        found = lives(f"head -c {size} /dev/zero", whole=True)
        return bool(found) and await idle(found[0])

    await eventually(waits, what="a command that waits")
    before = rss(fleet.agent.process.pid)
    seen = 0
    while piece := await asyncio.to_thread(os.read, process.stdout.fileno(), 2**20):
        seen += len(piece)
    await asyncio.to_thread(process.communicate)
    assert (seen, process.returncode) == (size, 0)
    assert rss(fleet.agent.process.pid) - before < 16 * 2**20
    typed = "x" * (8 * 2**20)
    counted = await fleet.ctl("pod", "exec", "web", "-i", "--", "sh", "-c", "sleep 0.2; wc -c", stdin=typed)
    assert counted.out.strip() == str(len(typed))
    assert rss(fleet.agent.process.pid) - before < 16 * 2**20


async def idle(pid: str) -> bool:
    """Whether a process writes nothing for a while."""
    before = Path(f"/proc/{pid}/io").read_text()
    await asyncio.sleep(0.2)
    return before == Path(f"/proc/{pid}/io").read_text()


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\0", "found a message without the number of a stream"),
        ("no json", "found a text that is no JSON"),
        ("[1]", "found a text that is no JSON object"),
        ('{"resize": "x"}', "found ['resize'], expected resize or signal"),
        ('{"signal": "KILL"}', "found ['signal'], expected resize or signal"),
        ('{"took": 1}', "took: found something else than a stream and a number"),
        (None, "found more than 1048576 bytes that were not asked for"),
        (b"\0\0\0\x07x", "found data of stream 7, which nobody opened"),
        (b"\0\0\0\x07", "found data of stream 7, which nobody opened"),
        ([b"\0\0\0\0", b"\0\0\0\0x"], "found more of stream 0 after its end"),
        ([b"\0\0\0\0", b"\0\0\0\0"], "found more of stream 0 after its end"),
    ],
)
async def test_who_does_not_keep_to_the_protocol_is_cut_off(
    fleet: Fleet, sent: bytes | str | list[bytes] | None, why: str
) -> None:
    headers = await fleet.key("sleep", f"5003.{ME}")
    async with aiohttp.ClientSession() as http, http.ws_connect(fleet.url + PATH, headers=headers) as socket:
        if isinstance(sent, str):
            await socket.send_str(sent)
        elif sent is not None:
            for each in sent if isinstance(sent, list) else [sent]:
                await socket.send_bytes(each)
        else:
            with contextlib.suppress(ConnectionError):
                for _ in range(2 * WINDOW // PIECE):
                    await socket.send_bytes(STDIN.to_bytes(4, "big") + bytes(PIECE))
        assert await until(socket, "failed", why) == {"failed": why}
    await dead(f"sleep 5003.{ME}")
    assert [note.how["error"] for note in await fleet.ends(1)] == [why]


async def test_a_node_runs_few_commands_at_once_and_each_of_thousands_of_callers_gets_an_answer(
    fleet: Fleet,
) -> None:
    answers = await asyncio.gather(*(fleet.status({access.HEADER: access.made()}) for _ in range(500)))
    assert {status for status, _ in answers} == {403}
    async with contextlib.AsyncExitStack() as held:
        http = await held.enter_async_context(aiohttp.ClientSession())
        for _ in range(MOST):
            await held.enter_async_context(
                http.ws_connect(fleet.url + PATH, headers=await fleet.key("sleep", f"5004.{ME}"))
            )
        assert await fleet.status(await fleet.key("true")) == (429, f"{MOST} commands already run here")
    await dead(f"sleep 5004.{ME}")
    huge = {**(await fleet.key("true")), "X-Huge": "x" * 9000}
    assert (await fleet.status(huge))[0] == 400
    assert (await fleet.ctl("pod", "exec", "web", "--", "true")).code == 0


async def test_files_and_folders_are_copied_both_ways_and_nothing_leads_out(
    fleet: Fleet, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    (here / "sub" / "a").write_text("one")
    (here / "run").write_text("#!/bin/sh\n")
    (here / "run").chmod(0o755)
    (here / "link").symlink_to("sub/a")
    assert (await fleet.ctl("pod", "cp", str(here), "n1/web:tree")).code == 0
    shown = await fleet.ctl(
        "pod", "exec", "web", "--", "sh", "-c", "cat tree/link; test -x tree/run && echo !"
    )
    assert shown.out == "one!\n"
    assert (await fleet.ctl("pod", "cp", "web:tree", str(tmp_path / "back"))).code == 0
    assert (tmp_path / "back" / "link").read_text() == "one"
    assert (tmp_path / "back" / "link").is_symlink()
    assert (await fleet.ctl("pod", "cp", "web:tree/sub/a", str(tmp_path))).code == 0
    assert (tmp_path / "a").read_text() == "one"
    (here / "out").symlink_to("../../etc/passwd")
    for words, why in (
        ((str(here), "web:other"), "other/out: found a link to ../../etc/passwd, which leads out"),
        (("web:absent", str(tmp_path)), "web: its tar ended with 2: what was copied is not complete"),
        (("web:tree", str(tmp_path / "back")), "back/tree"),
        (("web:/", str(tmp_path)), "found the path '/', expected one of a file or a folder"),
        ((str(here), str(here)), "SOURCE, TARGET: expected a pod in one of both"),
        ((str(tmp_path / "none"), "web:x"), "none: found no such file or folder"),
    ):  # fmt: skip
        done = await fleet.ctl("pod", "cp", *words)
        if why == "back/tree":
            assert done.code == 0
            assert (tmp_path / why / "run").exists()
        else:
            assert done.code != 0
            assert why in done.err


HOSTILE = (
    "mkdir -p bin evil; echo x > evil/f; PATH=/usr/bin:/bin\n"
    "python3 - <<'P'\nimport tarfile, io\n"
    "t = tarfile.open('evil.tar', 'w')\n"
    "def add(name, kind=tarfile.REGTYPE, link=''):\n"
    "    i = tarfile.TarInfo(name); i.type = kind; i.linkname = link; t.addfile(i)\n"
    "{add}\nt.close()\nP\n"
)


@pytest.mark.parametrize(
    ("add", "why"),
    [
        ("add('../escaped')", "'../escaped' leaves the folder that it is unpacked into"),
        ("add('/tmp/escaped')", "'/tmp/escaped' leaves the folder"),
        ("add('x/l', tarfile.SYMTYPE, '../../escaped')", "which could leave the folder"),
        ("add('x', tarfile.SYMTYPE, '/etc'); add('x/passwd')", "which could leave the folder"),
        ("add('x/l', tarfile.SYMTYPE, '../escaped')", "which leads out of what is copied"),
        ("add('x/l', tarfile.SYMTYPE, '../x/f')", "which leads out of what is copied"),
        ("add('x', tarfile.SYMTYPE, 'escaped')", "which leads out of what is copied"),
        ("add('x/dev', tarfile.CHRTYPE)", "is a device, a pipe or of another kind"),
        ("add('x/h', tarfile.LNKTYPE, '/etc/passwd')", "leaves the folder"),
    ],
)
async def test_a_pod_whose_tar_lies_writes_nothing_outside_of_the_copy(
    rig: Agents, tmp_path: Path, add: str, why: str
) -> None:
    """The command that the pod runs is its own: here a tar that sends what it wants."""
    work = tmp_path / "work"
    work.mkdir()
    tar = tmp_path / "tar"
    tar.write_text(f"#!/bin/sh\ncd {work}\n{HOSTILE.format(add=add)}\nexec /bin/cat evil.tar\n")
    tar.chmod(0o755)
    pod = shell(f"exec sleep 5000.{ME}", env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    async with fleet_of(rig, tmp_path, pod) as fleet:
        into = tmp_path / "into"
        into.mkdir()
        done = await fleet.ctl("pod", "cp", "web:x", str(into))
        assert done.code == 9
        assert why in done.err
        assert list(into.iterdir()) == []
        assert not (tmp_path / "escaped").exists()


async def test_a_port_here_leads_to_the_pods_own_port_for_many_connections_and_to_no_other(
    rig: Agents, tmp_path: Path
) -> None:
    async with fleet_of(rig, tmp_path, web()) as fleet:
        port = (await rig.until(lambda r: r.health.state == "passing")).ports["http"]
        for words, why in (
            ((str(port + 1),), f"port: found {port + 1}, expected one of the pod's own (http: {port})"),
            (("70000",), "ports: found '70000', expected [LOCAL:]REMOTE, such as 8080:80"),
            (("x:80",), "ports: found 'x:80', expected [LOCAL:]REMOTE"),
            ((f"{port}:{port}",), f"127.0.0.1:{port}: cannot listen"),
        ):
            refused = await fleet.ctl("pod", "port-forward", "web", *words)
            assert refused.code != 0
            assert why in refused.err
        process = fleet.farmctl.start("pod", "port-forward", "web", f"0:{port}")
        assert process.stderr is not None
        line = await asyncio.to_thread(process.stderr.readline)
        local = line.split(" ")[0]
        assert line == f"{local} leads to port {port} of n1/web, until ^C\n"
        async with aiohttp.ClientSession() as http:

            async def asked() -> str:
                async with http.get(f"http://{local}/", headers={"Connection": "close"}) as answer:
                    return await answer.text()

            assert set(await asyncio.gather(*(asked() for _ in range(20)))) == {"web"}
            assert await asked() == "web"
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.communicate)
        assert process.returncode == 0
        ends = [note.how for note in await fleet.ends(3) if note.exec.port == port]
        assert sorted(how["connections"] for how in ends) == [0, 21]
        assert [how for how in ends if "error" in how] == []


async def test_who_forwards_ports_opens_each_stream_once_and_few(rig: Agents, tmp_path: Path) -> None:
    async with fleet_of(rig, tmp_path, web()) as fleet:
        port = (await rig.until(lambda r: r.health.state == "passing")).ports["http"]
        for sent, why in (
            (['{"open": 3}', '{"open": 3}'], "found 3 as the number of a new stream, expected one above 3"),
            (['{"open": 1}'], "found 1 as the number of a new stream, expected one above 2"),
            (
                ['{"open": 4294967296}'],
                "found 4294967296 as the number of a new stream, expected one above 2",
            ),
            (['{"open": true}'], "found ['open'], expected open or close and a number"),
        ):
            async with aiohttp.ClientSession() as http, fleet.forwarded(http, port) as socket:
                for each in sent:
                    await socket.send_str(each)
                assert await until(socket, "failed", why) == {"failed": why}
        async with aiohttp.ClientSession() as http, fleet.forwarded(http, port) as socket:
            for number in range(3, 4 + CONNECTIONS):
                await socket.send_str(json.dumps({"open": number}))
            last = 3 + CONNECTIONS
            told = {"closed": last, "why": f"{CONNECTIONS} connections are already open"}
            assert await until(socket, "closed", last) == told
            await socket.send_bytes(last.to_bytes(4, "big") + b"late")  # who sent it did not know yet
            await socket.send_str('{"resize": 1}')
            why = "found ['resize'], expected open or close and a number"
            assert await until(socket, "failed", why) == {"failed": why}


async def until(socket: aiohttp.ClientWebSocketResponse, name: str, value: object) -> dict[str, object]:
    """The first message that has this value, or says that all failed."""
    while True:
        found: dict[str, object] = json.loads(await socket.receive_str(timeout=60))
        if found.get(name) == value or "failed" in found:
            return found
