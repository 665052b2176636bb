"""What a shim writes reaches journald and syslog servers once, in order, and what could not is counted."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from farmd.agent.forwarding import forwarder, senders
from farmd.agent.forwarding.forwarder import MOST_DESTINATIONS, Forwarder, Lane
from farmd.agent.forwarding.senders import Connection, Datagrams, Journal, message
from farmd.agent.forwarding.stream import HALF_LINE_SECONDS, MOST_LINES, Origin, Stream
from farmd.agent.log_files import LOG, MARKS, Log
from farmd.agent.logs import LogLine
from farmd.agent.state import StateDirectory
from store.features import LOGS, needed
from store.log_destinations import Destination, parsed
from store.manifests import Logs, Manifest
from tests.recorders import CountingRecorder
from tests.still_clock import StillClock

ORIGIN = Origin("n1", "web~2", "web", "r-1")
TO = "syslog://127.0.0.1:514"


def stream(folder: Path) -> Stream:
    return Stream(ORIGIN, folder, folder, TO)


def taken(found: Stream, longest: int = 8192, now: float = 0.0) -> bytes:
    """All that a stream gives until it has nothing more."""
    data = b""
    while lines := found.read(longest, now):
        found.advance(lines)
        data += b"".join(line.text for line in lines)
    return data


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %05d\n" % each for each in range(first, last))


def until(seen: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_stream_gives_each_line_once_across_rotations_and_across_shims_and_agents(tmp_path: Path) -> None:
    shim, found = Log(str(tmp_path), 1024, 3, "s1"), stream(tmp_path)
    got = b""
    for first in range(0, 400, 40):
        shim.write(lines(first, first + 40))
        got += taken(found)
        found.save()
        found = stream(tmp_path)  # another agent
        shim = Log(str(tmp_path), 1024, 3, f"s{first}")  # another start
    assert got == lines(0, 400)
    assert found.lost == 0


@pytest.mark.parametrize("keep", [0, 2])
def test_what_was_rotated_away_before_it_was_read_is_counted_to_the_byte(tmp_path: Path, keep: int) -> None:
    shim, found = Log(str(tmp_path), 1024, keep, "s1"), stream(tmp_path)
    shim.write(lines(0, 10))
    assert taken(found) == lines(0, 10)
    shim.write(lines(10, 2000))
    rest = taken(found)
    assert lines(10, 2000).endswith(rest)
    assert found.lost == len(lines(10, 2000)) - len(rest) > 0


def test_lines_have_their_time_and_start_and_a_new_start_ends_a_line(tmp_path: Path) -> None:
    found = stream(tmp_path)
    Log(str(tmp_path), 1024, 3, "s1").write(b"half")
    Log(str(tmp_path), 1024, 3, "s2").write(b"next\n")
    got = found.read(100, 0.0)
    assert [(each.start, each.text) for each in got] == [("s1", b"half"), ("s2", b"next\n")]
    assert all(abs(each.at - time.time()) < 60 for each in got)


def test_a_line_without_an_end_waits_a_moment_and_an_endless_one_is_cut(tmp_path: Path) -> None:
    shim, found = Log(str(tmp_path), 10**6, 1, "s1"), stream(tmp_path)
    shim.write(b"whole\nprompt> ")
    assert taken(found, now=0.0) == b"whole\n"
    assert taken(found, now=HALF_LINE_SECONDS) == b"prompt> "
    shim.write(b"x" * 700_000)
    got = []
    while part := found.read(1000, 0.0):
        found.advance(part)
        got += part
    assert {len(each.text) for each in got} <= {1000, 144}
    assert sum(len(each.text) for each in got) + 175_712 == 700_000
    assert len(taken(found, now=HALF_LINE_SECONDS)) == 175_712


def test_files_of_an_earlier_shim_are_read_too(tmp_path: Path) -> None:
    (tmp_path / f"{LOG}.1").write_bytes(b"old\n")
    (tmp_path / LOG).write_bytes(b"new\n")
    (tmp_path / MARKS).write_bytes(b"0 1700000000.000 s0\n")
    found = stream(tmp_path)
    assert b"".join(taken(found) for _ in range(4)) == b"new\n"


def test_the_last_words_of_a_pod_outlive_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "web"
    folder.mkdir()
    shim, found = Log(str(folder), 1024, 3, "s1"), stream(folder)
    shim.write(lines(0, 200))
    found.end(0.0)
    shutil.rmtree(folder)
    assert taken(found) == lines(0, 200)
    assert found.behind == 0
    found.close()
    assert found.lost == 0


# -- journald ------------------------------------------------------------------------------------
JOURNALD = Path("/lib/systemd/systemd-journald")


@pytest.fixture
def journald() -> Iterator[str]:
    """The name of a real journald's own namespace."""
    if os.geteuid() != 0 or not JOURNALD.exists():
        pytest.skip("needs root and systemd-journald")
    name = f"farmd{uuid4().hex[:12]}"
    folder = Path(f"/run/systemd/journal.{name}")
    process = subprocess.Popen([JOURNALD, name], stderr=subprocess.DEVNULL)
    try:
        until(lambda: (folder / "socket").exists() or process.poll() is not None)
        if process.poll() is not None:
            pytest.skip("systemd-journald does not run here")
        yield name
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        for logs in (Path("/run/log/journal"), Path("/var/log/journal")):
            for each in logs.glob(f"*.{name}"):
                shutil.rmtree(each)


def entries(name: str, *matches: str) -> list[dict[str, object]]:
    words = ["journalctl", "--namespace", name, "--output", "json", "--all", "--no-pager", *matches]
    done = subprocess.run(words, capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_journald_gets_fields_that_no_output_can_forge_and_lines_of_any_size(journald: str) -> None:
    sender = Journal(f"/run/systemd/journal.{journald}/socket")
    forged = b"evil\rMESSAGE=no\x00\xff FARMD_OWNER=other"
    given = [b"plain\n", forged + b"\n", b"y" * 250_000 + b"\n", b"\n"]
    assert sender.send(ORIGIN, [LogLine(1.7e9, "s1", each) for each in given]) == 4
    sender.close()
    until(lambda: len(entries(journald, "FARMD_OWNER=web")) == 4)
    found = entries(journald, "FARMD_OWNER=web")
    fields = ("FARMD_POD", "FARMD_NODE", "FARMD_OWNER_ID", "SYSLOG_IDENTIFIER", "PRIORITY", "FARMD_START")
    assert {tuple(each[name] for name in fields) for each in found} == {
        ("web~2", "n1", "r-1", "web", "6", "s1")
    }
    assert [each["MESSAGE"] for each in found] == ["plain", list(forged), "y" * 250_000, ""]
    assert found[0]["FARMD_TIME"] == "2023-11-14T22:13:20.000000Z"


def test_without_journald_nothing_is_lost_until_it_comes(journald: str, tmp_path: Path) -> None:
    place = tmp_path / "socket"
    Log(str(tmp_path), 10**6, 1, "s1").write(lines(0, 50))
    lane = Lane("journald", Journal(str(place)))
    lane.add(stream(tmp_path))
    lane.begin()
    try:
        until(lambda: lane.problem == "No such file or directory")
        place.symlink_to(f"/run/systemd/journal.{journald}/socket")
        until(lambda: len(entries(journald, "FARMD_POD=web~2")) == 50)
    finally:
        lane.stop()
        lane.join()
    assert [each["MESSAGE"] for each in entries(journald)][-50:] == lines(0, 50).decode().split("\n")[:-1]


# -- syslog --------------------------------------------------------------------------------------
class Server:
    """A syslog server that takes what comes."""

    def __init__(self, port: int = 0) -> None:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen()
        self.port = self.listener.getsockname()[1]
        self.data = b""
        self.reads = threading.Event()
        self.reads.set()
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            self.connections.append(connection)
            while self.reads.wait() and (data := connection.recv(65536)):
                self.data += data

    @property
    def messages(self) -> list[bytes]:
        """The whole messages, by the lengths before them."""
        found, data, at = [], self.data, 0
        while (end := data.find(b" ", at)) >= 0:
            begin, at = end + 1, end + 1 + int(data[at:end])
            if at > len(data):
                break
            found.append(data[begin:at])
        return found

    def close(self) -> None:
        for each in (self.listener, *self.connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def sending(folder: Path, port: int) -> Iterator[Lane]:
    lane = Lane(TO, Connection(Destination("tcp", "127.0.0.1", port)))
    lane.add(stream(folder))
    lane.begin()
    try:
        yield lane
    finally:
        lane.stop()
        lane.join()


def test_a_message_is_of_rfc_5424_and_holds_no_line_end() -> None:
    origin = Origin("n 1", "web~2", 'a"]b', "r-1")
    made = message(origin, LogLine(1.7e9, "s1", b"one\nFORGED\r\x1b[0m\xff\r\n"))
    head = b'<14>1 2023-11-14T22:13:20.000000Z n_1 a"]b web~2 - '
    data = b'[farmd@32473 pod="web~2" owner="a\\"\\]b" node="n 1"] '
    assert made == head + data + b"one FORGED  [0m\xff"
    assert message(ORIGIN, LogLine(0.0, "", b"x\n")).startswith(b"<14>1 - n1 web web~2 - [")


def test_syslog_by_tcp_survives_a_server_that_is_away_and_comes_again(tmp_path: Path) -> None:
    shim, server = Log(str(tmp_path), 10**6, 1, "s1"), Server()
    shim.write(lines(0, 100))
    with sending(tmp_path, server.port) as lane:
        until(lambda: len(server.messages) == 100)
        server.close()
        shim.write(lines(100, 200))
        until(lambda: "refused" in lane.problem)
        again = Server(server.port)
        until(lambda: len(again.messages) == 100)
    texts = [each.partition(b"] ")[2] for each in server.messages + again.messages]
    assert texts == lines(0, 200).split(b"\n")[:-1]
    again.close()


def test_a_server_that_stalls_costs_only_what_is_rotated_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "SEND_SECONDS", 0.3)
    server = Server()
    server.reads.clear()
    shim = Log(str(tmp_path), 1 << 20, 2, "s1")
    block = b"".join(b"%06d %b\n" % (each, b"z" * 993) for each in range(1000))
    with sending(tmp_path, server.port) as lane:
        (found,) = lane.streams.values()
        for _ in range(20):
            shim.write(block)  # the workload never waits
        until(lambda: lane.problem == "it does not read")
        server.reads.set()
        until(lambda: lane.problem == "" and found.behind == 0 and found.lost > 0)
        until(lambda: len(server.messages) * 1001 + found.lost >= 20 * len(block) - 2000)
    server.close()


def test_syslog_by_udp(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        sender = Datagrams(Destination("udp", "127.0.0.1", server.getsockname()[1]))
        assert sender.send(ORIGIN, [LogLine(1.7e9, "s1", b"one\n"), LogLine(1.7e9, "s1", b"two\n")]) == 2
        assert server.recv(4096).endswith(b"] one")
        assert server.recv(4096).endswith(b"] two")
    unread = [LogLine(1.7e9, "s1", b"nobody reads it\n")]
    sender.send(ORIGIN, unread)  # nobody can know yet
    with pytest.raises(ConnectionRefusedError):
        sender.send(ORIGIN, unread)
    sender.close()


@pytest.mark.parametrize("kind", ["udp", "tcp", "tls"])
@pytest.mark.parametrize("host", ["169.254.169.254", "::ffff:169.254.169.254", "224.0.0.1", "fd00:ec2::254"])
def test_no_manifest_has_a_node_send_to_cloud_metadata_or_to_a_group(kind: Any, host: str) -> None:
    sender = senders.of(Destination(kind, host, 80), "")
    with pytest.raises(PermissionError, match=f"{host} is .*: agent.log_hosts of this node does not list it"):
        sender.send(ORIGIN, [LogLine(1.7e9, "s1", b"one\n")])


def test_a_name_that_is_looked_up_for_ever_holds_up_its_own_destination_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def lookup(*_: object, **__: object) -> list[Any]:
        answered.wait()
        return []

    monkeypatch.setattr(forwarder, "HANGS_SECONDS", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    Log(str(tmp_path), 10**6, 1, "s1").write(b"one\n")
    with sending(tmp_path, 9) as lane:
        until(lambda: lane.told == "it hangs, perhaps in the lookup of the name")
        answered.set()
        until(lambda: lane.told == "it has no address")


@pytest.mark.parametrize(
    "text", ["", "journal", "syslog://host", "syslog://a b:1", "syslog://h:0", "syslog://h:70000", "syslog+x://h:1",
             "syslog://user@h:1", "tcp://h:1", "syslog://h:1/x"],
)  # fmt: skip
def test_what_is_no_destination_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected file, journald, syslog"):
        parsed(text)


def test_destinations() -> None:
    assert parsed("syslog+udp://[::1]:514") == Destination("udp", "::1", 514)
    assert parsed("syslog+tls://logs.example:6514") == Destination("tls", "logs.example", 6514)


def test_r11_pods_whose_output_goes_elsewhere_are_placed_only_on_agents_that_send_it() -> None:
    told = [Manifest(id="web", command=["true"], logs=Logs(to=to)) for to in ([], ["file"], ["journald"])]
    assert [LOGS in needed(each) for each in told] == [False, False, True]


def test_a_flood_of_empty_lines_is_read_in_bounded_portions(tmp_path: Path) -> None:
    Log(str(tmp_path), 10**6, 1, "s1").write(b"\n" * 100_000)
    found = stream(tmp_path)
    assert len(found.read(8192, 0.0)) == MOST_LINES
    assert taken(found) == b"\n" * 100_000
    assert found.behind == 0


def test_the_destinations_of_the_node_have_room_whatever_manifests_name(tmp_path: Path) -> None:
    default = "syslog://127.0.0.1:9"
    found = Forwarder(
        StateDirectory(tmp_path), "n1", list, StillClock(), CountingRecorder(), default=[default]
    )
    for port in range(10, 10 + MOST_DESTINATIONS):
        assert found._add(ORIGIN, f"syslog://127.0.0.1:{port}")
    assert not found._add(ORIGIN, "syslog://127.0.0.1:99")
    assert found._add(ORIGIN, default)
    found._leave()
