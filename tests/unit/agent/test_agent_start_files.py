"""R29: what a start wrote of its end is read as its own word, and as nobody else's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farmd.agent.environment import with_own
from farmd.agent.removal import Trash
from farmd.agent.runtimes import start_files
from farmd.agent.runtimes.runtime import Launch
from store.containers import Container
from store.manifests import Manifest, Restart
from store.peers import Peer, document
from store.variables import words

JOB = Manifest(id="job", command=["x"], restart=Restart(policy="never"))


def launch(start: str, manifest: Manifest = JOB, **fields: Any) -> Launch:
    return Launch(instance="job", sha="", manifest=manifest, ports={}, start=start, started=1.0, **fields)


def result(folder: Path, start: str) -> Path:
    return start_files.paths(folder, start)["FARMD_RESULT"]


def test_only_pods_that_may_end_have_a_result(tmp_path: Path) -> None:
    start_files.lay_out(tmp_path / "starts", launch("s1", Manifest(id="web", command=["x"])), None)
    assert start_files.paths(tmp_path / "starts", "s1") == {}
    assert start_files.message(tmp_path / "starts", "s1") == ""


def test_a_start_never_speaks_for_another_one(tmp_path: Path) -> None:
    for start in ("s1", "s2"):
        start_files.lay_out(tmp_path, launch(start), None)
        assert start_files.message(tmp_path, start) == ""
        result(tmp_path, start).write_text(start)
    assert [start_files.message(tmp_path, start) for start in ("s1", "s2")] == ["s1", "s2"]
    start_files.keep_only(tmp_path, "s2", Trash(tmp_path.with_name("trash")))
    assert [path.name for path in tmp_path.iterdir()] == ["s2"]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"", ""),
        (b" loss 0.3\n", "loss 0.3"),
        (b"x" * 5000 + b"end", "x" * 1021 + "end"),
        ("é".encode() * 1000 + b"!", "é" * 511 + "!"),
        (b"\xff\xfeok", "ok"),
    ],
)
def test_the_end_of_a_long_result_is_told(tmp_path: Path, written: bytes, told: str) -> None:
    start_files.lay_out(tmp_path, launch("s1"), None)
    result(tmp_path, "s1").write_bytes(written)
    assert start_files.message(tmp_path, "s1") == told


def test_what_is_no_file_any_more_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password")
    for name, make in (("s1", lambda path: path.symlink_to(secret)), ("s2", os.mkfifo)):
        start_files.lay_out(tmp_path, launch(name), None)
        path = result(tmp_path, name)
        path.unlink()
        make(path)
        assert start_files.message(tmp_path, name) == ""


def test_nobody_else_on_the_node_reaches_the_result_of_a_container(tmp_path: Path) -> None:
    container = Manifest(id="job", runtime="container", container=Container(image="a"), restart=JOB.restart)
    start_files.lay_out(tmp_path, launch("s1", container), None)
    path = result(tmp_path, "s1")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o666, 0o700)


def test_a_start_is_told_its_variables_and_its_peers_in_two_forms(tmp_path: Path) -> None:
    slots = [(2, "b"), (0, "a"), (1, "b")]
    body = document([Peer("worker", rank, rank, f"10.0.0.{host}", {"job": 9}) for rank, host in slots])
    web = Manifest(id="web", command=["x"])
    start_files.lay_out(tmp_path, launch("s1", web, vars={"FARMD_RANK": "0"}, peers=body), None)
    told = start_files.variables(tmp_path, "s1")
    assert (told.pop("FARMD_RANK"), set(told)) == ("0", {"FARMD_PEERS_FILE", "FARMD_HOSTFILE"})
    named = msgspec.json.decode(Path(told["FARMD_PEERS_FILE"]).read_bytes())["members"]
    assert [each["rank"] for each in named] == [0, 1, 2]
    assert named[0] == {"type": "worker", "index": 0, "rank": 0, "address": "10.0.0.a", "ports": {"job": 9}}
    assert Path(told["FARMD_HOSTFILE"]).read_text() == "10.0.0.a slots=1\n10.0.0.b slots=2\n"


def test_a_command_gets_the_values_of_farmds_variables() -> None:
    values = {"FARMD_PORT_HTTP": "8080"}
    assert words(["serve", "--port=${FARMD_PORT_HTTP}", "${FARMD_NO}", "$HOME"], values) == [
        "serve", "--port=8080", "${FARMD_NO}", "$HOME",
    ]  # fmt: skip


def test_a_manifest_may_speak_of_farmds_variables_and_cannot_set_them() -> None:
    manifest = Manifest(
        id="job",
        command=["x"],
        env={"RANK": "${FARMD_RANK}", "X": "${FARMD_NO} ${HOME}", "FARMD_NODE": "lies"},
    )
    found = with_own(manifest, "n1", "job~0", {}, {"FARMD_RANK": "7"})
    assert found == {
        "RANK": "7",
        "X": "${FARMD_NO} ${HOME}",
        "FARMD_RANK": "7",
        "FARMD_NODE": "n1",
        "FARMD_INSTANCE": "job~0",
    }
