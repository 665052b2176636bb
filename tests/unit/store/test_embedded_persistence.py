"""A restart of the embedded server keeps data; damage is named, never guessed around."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.embedded.server import EmbeddedServer, InProcessTransport
from store.embedded.state import DataDirectoryBroken, Log
from tests.contract.faces import Face
from tests.effort import first
from tests.fleet import LIMIT
from tests.virtual import SeededIds, VirtualClock


class Machine:
    """An embedded server on a data directory, which can be restarted."""

    def __init__(self, folder: Path, snapshot_every: int = 20_000) -> None:
        self.clock = VirtualClock()
        self._folder = folder
        self._every = snapshot_every
        self._seed = 0
        self.start()

    def start(self) -> None:
        self._seed += 1
        self._log = Log(self._folder, self._every)
        state = self._log.load(self.clock)
        server = EmbeddedServer(self.clock, rng=random.Random(1), ids=SeededIds(self._seed), state=state)
        transport = InProcessTransport(server)
        from store.consul.client import ConsulClient

        self.face = Face("machine", transport, ConsulClient(transport, clock=self.clock), self.clock, "p/")

    def stop(self) -> None:
        self._log.close()

    def restart(self) -> None:
        self.stop()
        self.start()


async def everything(face: Face) -> object:
    """All that a client can see."""
    paths = (
        "/v1/kv/?recurse",
        "/v1/kv/a/?recurse",
        "/v1/kv/gone/?recurse",
        "/v1/kv/none",
        "/v1/session/list",
        "/v1/catalog/node/n1",
        "/v1/catalog/service/gone",
        "/v1/health/service/web",
        "/v1/health/state/any",
    )
    seen = []
    for path in paths:
        route, _, flag = path.partition("?")
        answer = await face.raw("GET", route, {flag: ""} if flag else {})
        seen.append((answer.status, answer.headers.get("x-consul-index"), answer.body))
    return seen


async def register(face: Face, number: int) -> None:
    """An instance that stays, whose check changes, and one that goes."""
    output = str(number)
    check = {"Node": "n1", "CheckID": "c", "ServiceID": "web", "Status": "passing", "Output": output}
    body = [
        {"Node": {"Verb": "set", "Node": {"Node": "n1", "Address": "10.0.0.1", "Meta": {"a": "b"}}}},
        {"Service": {"Verb": "set", "Node": "n1", "Service": {"ID": "web", "Service": "web", "Port": 80}}},
        {"Service": {"Verb": "set", "Node": "n1", "Service": {"ID": "gone", "Service": "gone"}}},
        {"Check": {"Verb": "set", "Check": check}},
        {"Service": {"Verb": "delete", "Node": "n1", "Service": {"ID": "gone", "Service": "gone"}}},
    ]
    assert (await face.raw("PUT", "/v1/txn", body=body)).status == 200


async def fill(face: Face, rounds: int = 1) -> None:
    for number in range(rounds):
        session = await face.session(Behavior="release" if number % 2 else "delete")
        await face.client.put("a/lock", b"held", acquire=session)
        await face.client.put("a/é", bytes([number % 256]), flags=2**64 - 1)
        await face.client.put("gone/1", b"1")
        await register(face, number)
        await face.client.delete("gone/", recurse=True)
        await face.txn({"Verb": "set", "Key": "a/b"}, {"Verb": "cas", "Key": "none", "Index": 7})
        await face.txn({"Verb": "set", "Key": "a/b", "Value": b"1"}, {"Verb": "delete", "Key": "a/c"})
        if number % 3 == 1:
            await face.client.destroy_session(session)


@pytest.mark.parametrize("snapshot_every", [20_000, 7, 1])
async def test_a_restart_keeps_every_key_index_tombstone_and_session(
    tmp_path: Path, snapshot_every: int
) -> None:
    machine = Machine(tmp_path, snapshot_every)
    await fill(machine.face, rounds=10)
    before = await everything(machine.face)
    machine.restart()
    assert await everything(machine.face) == before
    index = (await machine.face.client.list("a/")).index
    await machine.face.client.put("a/new", b"1")
    assert (await machine.face.client.list("a/")).index > index
    machine.stop()


@pytest.mark.parametrize("snapshot_every", [20_000, 1])
async def test_sessions_have_their_full_time_again_after_a_restart(
    tmp_path: Path, snapshot_every: int
) -> None:
    machine = Machine(tmp_path, snapshot_every)
    session = await machine.face.session()
    await machine.face.elapse(15)
    machine.restart()
    await machine.face.elapse(15)
    assert await machine.face.client.session_info(session) is not None
    await machine.face.elapse(6)
    assert await machine.face.client.session_info(session) is None
    machine.restart()
    assert await machine.face.client.session_info(session) is None
    machine.stop()


async def test_a_cut_last_line_is_what_a_crash_leaves(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    await machine.face.client.put("a", b"1")
    await machine.face.client.put("b", b"1")
    machine.stop()
    log = tmp_path / "log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-9])
    machine.start()
    assert (await machine.face.client.keys("")).items == ["a"]
    await machine.face.client.put("c", b"1")
    machine.restart()
    assert (await machine.face.client.keys("")).items == ["a", "c"]
    machine.stop()


async def test_a_crash_between_snapshot_and_the_new_log_applies_nothing_twice(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    session = await machine.face.session()
    for _ in range(3):  # a lock's count is what applying twice would show
        await machine.face.client.put("a/counted", b"1", acquire=session)
        await machine.face.client.put("a/counted", b"1", release=session)
    log = (tmp_path / "log.jsonl").read_bytes()
    before = await everything(machine.face)
    machine.stop()
    machine = Machine(tmp_path, snapshot_every=1)
    await machine.face.client.delete("none")  # changes nothing, but the log is full now
    machine.stop()
    (tmp_path / "log.jsonl").write_bytes(log)
    machine.start()
    assert await everything(machine.face) == before
    machine.stop()


@pytest.mark.parametrize(
    ("file", "content"), [("log.jsonl", b'{"index": 1, "command": 5}\n{}\n'), ("snapshot.json", b"{")]
)
def test_damage_stops_the_start_and_names_the_file(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    log = Log(tmp_path)
    with pytest.raises(DataDirectoryBroken, match=file):
        log.load(VirtualClock())
    log.close()


def test_a_data_directory_has_one_server(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with pytest.raises(DataDirectoryBroken, match="another server"):
        Log(tmp_path)
    log.close()
    Log(tmp_path).close()


# The process


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "store.embedded", "--http-addr", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


def call(address: str, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
    request = urllib.request.Request(f"http://{address}{path}", data=body, method=method)
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        return bytes(answer.read())


@pytest.mark.parametrize("how", first(1, [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
def test_the_process_prints_its_address_keeps_data_and_ends_cleanly(
    tmp_path: Path, how: signal.Signals
) -> None:
    with process("--data-dir", str(tmp_path)) as (running, address):
        call(address, "/v1/kv/a", "PUT", b"kept")
        running.send_signal(how)
        assert running.wait(LIMIT) == (-how if how == signal.SIGKILL else 0)
    with process("--data-dir", str(tmp_path)) as (_, address):
        assert call(address, "/v1/kv/a?raw") == b"kept"


def test_a_parked_query_does_not_hold_a_clean_stop() -> None:
    with process() as (running, address):
        call(address, "/v1/kv/a", "PUT", b"1")
        host, _, port = address.partition(":")
        import http.client

        parked = http.client.HTTPConnection(host, int(port), timeout=LIMIT)
        parked.request("GET", "/v1/kv/a?index=99&wait=300s")
        call(address, "/v1/status/leader")
        running.terminate()
        assert running.wait(LIMIT) == 0
        parked.close()


@pytest.mark.parametrize("address", first(1, ["127.0.0.1:99999", "nonsense", "127.0.0.1:x"]))
def test_an_address_that_is_none_is_one_line_and_exit_code_2(address: str) -> None:
    command = [sys.executable, "-m", "store.embedded", "--http-addr", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2
    assert done.stderr == f"--http-addr: found {address!r}, expected HOST:PORT\n"


def test_an_address_in_use_is_one_line_and_exit_code_1() -> None:
    with process() as (_, address):
        command = [sys.executable, "-m", "store.embedded", "--http-addr", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
