"""``farmd dev``: three lines that work, and nothing left behind, whoever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import tomllib
from pathlib import Path

import pytest

from farmd.dev import tree
from tests.farmctl import Farmctl
from tests.fleet import LIMIT
from tests.processes import Program, eventually, get

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/hello.yaml"


class Dev(Program):
    """A running ``farmd dev``."""

    def started(self) -> Dev:
        """Wait for the lines that it prints."""
        self.folder = Path(re.search(r"state and logs: (\S+);", self.wait_text("state and logs"))[1])
        self.store = self.wait_text("export CONSUL_HTTP_ADDR=").strip().partition("=")[2]
        self.wait_text(" top")
        return self

    def farmctl(self, *arguments: str) -> str:
        return Farmctl(self.store).ok(*arguments).out

    def run_hello(self) -> list[dict]:
        """Create the example and wait until its pods answer."""
        self.farmctl("rc", "create", "-f", str(EXAMPLE), "--wait")
        pods = json.loads(self.farmctl("rc", "pods", "hello", "-o", "json"))["items"]
        for pod in pods:
            _, body = get(f"http://127.0.0.1:{pod['ports']['http']}/")
            assert body == f"hello from {pod['node']}/{pod['instance']}\n"
        return pods

    def pod_ports(self) -> list[int]:
        """Every port that its agents may give to pods."""
        files = [tomllib.loads(file.read_text()) for file in self.folder.glob("node-*.toml")]
        ranges = [map(int, file["agent"]["port_range"].split("-")) for file in files]
        return [port for first, last in ranges for port in range(first, last + 1)]

    def below(self) -> dict[int, str]:
        """Every process that it caused, with its command line."""
        return {pid: command_line(pid) for pid in tree.descendants(self.process.pid)}


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def still_there(before: dict[int, str]) -> dict[int, str]:
    """Those of the processes that live on; an id that was given to somebody else does not count."""
    return {pid: line for pid, line in before.items() if line and command_line(pid) == line}


@pytest.fixture
def dev(tmp_path):
    """A small cluster, ended with the test."""
    with Dev("dev", "--agents", "3", folder=tmp_path, TMPDIR=str(tmp_path)) as program:
        yield program.started()
        before = program.below()
        program.signal(signal.SIGTERM)
        program.process.wait(LIMIT)
        assert still_there(before) == {}


def test_the_three_lines_work_and_interrupt_leaves_nothing(dev):
    pods = dev.run_hello()
    assert {pod["node"] for pod in pods} == {"node-1", "node-2", "node-3"}
    assert (
        json.loads(get(f"http://{dev.store}/v1/kv/farmd/farms/farm-1")[1])[0]["Key"] == "farmd/farms/farm-1"
    )
    before = dev.below()
    assert len(before) >= 1 + 1 + 2 + 3 + 3
    assert {pod["pid"] for pod in pods} <= before.keys()
    assert "<h1>Fleet</h1>" in get(re.search(r"in a browser: (\S+)", dev.text)[1])[1]
    assert dev.ends(signal.SIGINT) == 0
    assert "processes left: 0" in dev.text
    assert still_there(before) == {}
    assert not dev.folder.exists()


def test_agents_of_fleets_on_one_machine_share_no_port(dev, tmp_path):
    with Dev("dev", "--agents", "3", folder=tmp_path, TMPDIR=str(tmp_path)) as second:
        ports = dev.pod_ports() + second.started().pod_ports()
        assert len(ports) > 500
        assert len(set(ports)) == len(ports)
        assert second.ends(signal.SIGINT) == 0


@pytest.mark.parametrize("who", ["keeper", "an agent and then farmd dev"])
def test_a_kill_leaves_nothing(dev, who):
    """The pod of the killed agent is an orphan; those of the others have their agents."""
    dev.run_hello()
    before = dev.below()
    keeper, agent = (
        next(pid for pid, line in before.items() if word in line)
        for word in ("farmd.dev.keeper", "node-1.toml")
    )
    if who == "keeper":
        os.kill(keeper, signal.SIGKILL)
        assert dev.ends() == 1
    else:
        os.kill(agent, signal.SIGKILL)
        dev.process.kill()
    eventually(f"nothing left of {who}", lambda: not still_there(before))
    eventually("the folder is gone", lambda: not dev.folder.exists())


@pytest.mark.slow
def test_a_data_dir_keeps_the_fleet_and_belongs_to_one_cluster(tmp_path):
    data = tmp_path / "data"
    arguments = ("dev", "--agents", "3", "--data-dir", str(data))
    with Dev(*arguments, folder=tmp_path) as first:
        pods = first.started().run_hello()
        with Dev(*arguments, folder=tmp_path) as second:
            assert second.ends() == 1
            assert "another cluster runs there" in second.text
        before = first.below()
        assert first.ends(signal.SIGTERM) == 0
        assert still_there(before) == {}
    with Dev(*arguments, folder=tmp_path) as again:
        again.started()

        def back() -> bool:
            items = json.loads(again.farmctl("rc", "pods", "hello", "-o", "json"))["items"]
            return len([pod for pod in items if pod["healthy"]]) == len(pods)

        eventually("the pods run again", back)
        before = again.below()
        assert again.ends(signal.SIGTERM) == 0
        assert still_there(before) == {}


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (
            ["--data-dir", "/proc/x"],
            1,
            "farmd dev: --data-dir: found '/proc/x' (No such file or directory),"
            " expected a folder to keep state in",
        ),
        (
            ["--data-dir", "/dev/null"],
            1,
            "farmd dev: --data-dir: found '/dev/null' (Not a directory), expected a folder to keep state in",
        ),
        (
            ["--engine", "/nonexistent"],
            2,
            "farmd dev: --engine: found '/nonexistent', where no engine answers",
        ),
        (
            ["--http-addr", "127.0.0.1:99999"],
            1,
            "farmd dev: the store did not start: --http-addr: found '127.0.0.1:99999', expected HOST:PORT",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path, arguments, code, line):
    with Program("dev", *arguments, folder=tmp_path) as dev:
        assert (dev.ends(), dev.text) == (code, f"{line}\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"a = [", "Invalid value (at end of document)"),
        (b"\xff", "not valid UTF-8"),
        (b"[farm]\nnmae = 1", "farm.nmae: unknown key, did you mean 'name'?"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_one_line_that_names_the_persons_file(tmp_path, text, line):
    file = tmp_path / "own.toml"
    file.write_bytes(text)
    with Program("dev", "--config", str(file), folder=tmp_path) as dev:
        assert (dev.ends(), dev.text) == (78, f"farmd: {file}: {line}\n")


def test_the_store_says_in_one_line_which_folder_it_cannot_use(tmp_path):
    command = ["--http-addr", "127.0.0.1:0", "--data-dir", "/proc/x"]
    with Program(*command, module="store.embedded", folder=tmp_path) as store:
        assert store.ends() == 1
        assert store.text == "store.embedded: --data-dir: /proc/x: No such file or directory\n"


def test_others_pass_through_its_folder_where_pods_have_users_of_their_own_and_read_none_of_its_files(
    dev: Dev,
) -> None:
    assert dev.folder.stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)
    assert {file.stat().st_mode & 0o777 for file in dev.folder.glob("*.toml")} == {0o600}
