"""What a peer without a credential may send to a farm's and an agent's HTTP: none of it stops their work."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import resource
import socket
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.agents import Agents, web
from tests.fleet import LIMIT, eventually
from tests.processes import Program, get

ROLES = ["run", "agent"]
FILES = 1024
PEERS = 1200


def bomb(mebibytes: int) -> bytes:
    """Gzip that is a thousandth of what it unpacks to."""
    packing = zlib.compressobj(9, wbits=31)
    block = bytes(1 << 20)
    return b"".join(packing.compress(block) for _ in range(mebibytes)) + packing.flush()


BOMB = bomb(128)
HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"


@pytest.fixture
async def program(rig: Agents, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Program]:
    """A farm or an agent that is ready, as a process with few files."""
    variables = {
        "CONSUL_HTTP_ADDR": rig.address,
        "FARMD_STORE__PREFIX": rig.keys.prefix,
        "FARMD_AGENT__STATE_DIR": str(tmp_path / "state"),
        "FARMD_AGENT__NODE": "n1",
        "FARMD_AGENT__SHARE_USER": "true",
        "FARMD_FARM__NAME": "f1",
    }
    with Program(request.param, "--port", "0", folder=tmp_path, **variables) as made:
        made.port = await asyncio.to_thread(lambda: made.wait_for("web.listening")["port"])
        await asyncio.to_thread(made.wait_for, "process.ready")
        resource.prlimit(made.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        yield made


def sent(port: int, *pieces: bytes) -> bytes:
    """All that is answered to these bytes, until the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as peer:
        found = b""
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                peer.sendall(piece)
            peer.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while piece := peer.recv(65536):
                found += piece
        return found


def cpu(pid: int) -> float:
    """Seconds of the processor that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def files(pid: int) -> int:
    """How many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.parametrize("program", ROLES, indirect=True)
async def test_a_packed_body_is_unpacked_for_no_route(program: Program) -> None:
    def request(method: bytes, path: bytes) -> bytes:
        length = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(BOMB)
        return method + b" " + path + b" HTTP/1.1\r\n" + HEAD + length + b"\r\n" + BOMB

    began = time.process_time()
    gzip.decompress(BOMB)
    unpacking = time.process_time() - began
    before, requests = (
        cpu(program.process.pid),
        [(b"GET", b"/health"), (b"POST", b"/signin"), (b"PUT", b"/x")],
    )
    for method, path in requests * 2:
        answer = await asyncio.to_thread(sent, program.port, request(method, path))
        assert answer[:13] in {b"", b"HTTP/1.1 200 ", b"HTTP/1.1 404 ", b"HTTP/1.1 405 ", b"HTTP/1.1 415 "}
    assert cpu(program.process.pid) - before < unpacking * len(requests)
    assert json.loads(get(f"http://127.0.0.1:{program.port}/health")[1])["health"] == "ok"


@pytest.mark.parametrize("program", ROLES, indirect=True)
async def test_no_bytes_of_a_peer_are_an_error_of_the_process(program: Program) -> None:
    form = b"POST /signin HTTP/1.1\r\nOrigin: http://127.0.0.1\r\n" + HEAD
    tried = [
        form + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
        form + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\nxx",
        form + b"Content-Length: 99999999\r\n\r\n" + bytes(70_000),
        form + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        form.replace(b"urlencoded", b"urlencoded; charset=none") + b"Content-Length: 3\r\n\r\na=1",
        form.replace(b"x-www-form-urlencoded", b"json") + b"Content-Length: 3\r\n\r\na=1",
        b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"GET /%ff%00/..%2f HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(300)) + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"\r\n\x00" * 1000,
    ]
    for bytes_sent in tried:
        answer = await asyncio.to_thread(sent, program.port, bytes_sent)
        assert answer[:10] in {b"", b"HTTP/1.1 4", b"HTTP/1.0 4", b"HTTP/1.1 3"}, (
            bytes_sent[:80],
            answer[:200],
        )
    assert get(f"http://127.0.0.1:{program.port}/health")[0] == 200
    assert "Traceback" not in program.tail()
    assert "web.request_failed" not in program.text


@pytest.mark.parametrize("program", ROLES, indirect=True)
async def test_peers_that_only_hold_connections_keep_out_nobody_and_no_work(
    program: Program, rig: Agents
) -> None:
    url = f"http://127.0.0.1:{program.port}"
    checked = web()
    is_agent = '"role": "agent"' in (await asyncio.to_thread(get, f"{url}/v1/status"))[1]
    if is_agent:
        await rig.want(checked)
        await rig.until(lambda r: r.health.state == "passing", what="a passing check")
    with held(program.port, PEERS):
        assert files(program.process.pid) < FILES / 2
        assert (await asyncio.to_thread(get, f"{url}/health"))[0] == 200
        if is_agent:
            folder = next(Path(rig.root).glob("**/instances/web/work"))
            (folder / "sick").touch()
            await rig.until(lambda r: r.health.state == "critical", what="a failing check")
            (folder / "sick").unlink()
            await rig.until(lambda r: r.health.state == "passing", what="a check that passes again")
        assert (await asyncio.to_thread(get, f"{url}/ready"))[0] == 200

    async def free() -> bool:
        return files(program.process.pid) < 100

    await eventually(free, what="the files of peers that left")


@contextlib.contextmanager
def held(port: int, count: int) -> Iterator[None]:
    """Connections that say nothing, or never end a request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * count)), hard))
    with contextlib.ExitStack() as stack:
        for number in range(count):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT))
            if number % 3 == 0:
                with contextlib.suppress(ConnectionError):
                    peer.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX")
        yield
