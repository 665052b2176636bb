"""The state directory: one agent at a time, whole files, and nothing believed that does not decode."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farmd.agent import exits, files
from farmd.agent.errors import ManifestUnusable, StateInvalid, StateLocked, StateUnsaved
from farmd.agent.files import write_atomically
from farmd.agent.link import FIRST_CHANCE, Contact
from farmd.agent.manifests import verified
from farmd.agent.model import Record
from farmd.agent.state import AgentIdentity, StateDirectory
from store import manifests
from store.manifests import Manifest
from tests.still_clock import StillClock


def test_r26_a_second_agent_is_kept_out_of_the_directory(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "s")
    script = (
        "import pathlib, sys, time\nfrom farmd.agent.state import StateDirectory\n"
        f"with StateDirectory(pathlib.Path({str(tmp_path / 's')!r})).locked('n1'):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        refusal = rf"in use by another agent \(pid {other.pid}\)"
        with pytest.raises(StateLocked, match=refusal), state.locked("n1"):
            raise AssertionError("the lock was given twice")
        other.kill()
    with state.locked("n1") as identity:
        assert identity == AgentIdentity("n1")


def test_a_directory_belongs_to_one_node(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    with state.locked("n1"):
        state.save_identity(AgentIdentity("n1", "c1", "s1"))
    with state.locked("n1") as identity:
        assert identity == AgentIdentity("n1", "c1", "s1")
    with pytest.raises(StateInvalid, match="node: found 'n2', expected 'n1'"), state.locked("n2"):
        pass


def test_a_state_dir_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    state = StateDirectory(tmp_path / "s")
    with pytest.raises(StateInvalid, match=r"state_dir: .*expected a directory"), state.locked("n1"):
        pass


def test_a_cut_agent_file_is_refused_and_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text('{"node":"n')
    with pytest.raises(StateInvalid), StateDirectory(tmp_path).locked("n1"):
        pass
    assert (tmp_path / "agent.json").read_text() == '{"node":"n'


def test_records_come_back_as_they_were_and_damaged_ones_are_none(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    with state.locked("n1"):
        record = Record(instance="web~2", manifest="a" * 64, ports={"http": 1}, restarts=3)
        state.save(record)
        assert state.known() == ["web~2"]
        assert state.load("web~2") == record
        (state.directory("web~2") / "instance.json").write_text("{")
        assert state.load("web~2") is None
        assert state.load("other") is None
        state.remove("web~2")
        assert state.known() == []


def test_only_instance_names_count_as_instances(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    with state.locked("n1"):
        (state.instances / "a b").mkdir()
        (state.instances / ".hidden").mkdir()
        assert state.known() == []


def test_exits_skip_a_cut_line_and_are_trimmed(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    with state.locked("n1"):
        state.create("web")
        lines = [f'{{"start":"s{n}","at":{n}.5,"code":{n % 3}}}' for n in range(100)]
        (state.directory("web") / "exits.jsonl").write_text("\n".join(lines) + '\n{"start":"s1')
        assert len(exits.read(state.directory("web"))) == 100
        assert exits.read(state.directory("web"))["s99"].code == 0
        exits.trim(state.directory("web"))
        assert list(exits.read(state.directory("web")))[-1] == "s99"
        assert len(exits.read(state.directory("web"))) <= exits.LINES_KEPT


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSPC, "disk full"),
        (errno.EDQUOT, "disk full"),
        (errno.EROFS, "Read-only file system"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_r26_what_cannot_be_written_waits_and_keeps_only_starts_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    state = StateDirectory(tmp_path)
    record = Record(instance="web", manifest="a" * 64)
    with state.locked("n1"), monkeypatch.context() as broken:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        broken.setattr(files, "write_atomically", refuse)
        state.save_identity(AgentIdentity("n1", "c1", "s1"))
        state.save_contact(7.0)
        state.save(record)
        assert state.unsaved_instances() == {"web": why}
        assert state.closed == f"{why}: state_dir {tmp_path} cannot be written"
        assert state.load("web") is None
        with pytest.raises(StateUnsaved, match=f"{why}: state_dir {tmp_path} cannot be written"):
            state.save_first(record)
        broken.undo()
        with pytest.raises(StateUnsaved, match=why):
            state.save_first(record)  # who the agent is comes first
        state.restore()
        state.save_first(record)
        assert (state.load("web"), state.saved_contact(), state.unsaved) == (record, 7.0, False)
        assert state.closed == ""
    with state.locked("n1") as identity:
        assert identity == AgentIdentity("n1", "c1", "s1")


def test_r26_files_that_other_hands_removed_are_written_again(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "s")
    with state.locked("n1"):
        state.save(Record(instance="kept"))
        state.save(Record(instance="gone"))
        state.forget("gone")
        state.remove("gone")
        shutil.rmtree(state.instances)
        state.restore()
        assert state.known() == ["kept"]
        shutil.rmtree(tmp_path / "s")
        state.restore()
        assert state.load("kept") == Record(instance="kept")
        with pytest.raises(StateLocked), StateDirectory(tmp_path / "s").locked("n1"):
            pass


def test_a_start_needs_room_before_anything_is_stopped_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDirectory(tmp_path)
    state.require_room()
    monkeypatch.setattr("farmd.agent.files.ROOM_BYTES", 1 << 60)
    with pytest.raises(StateUnsaved, match="disk full: state_dir"):
        state.require_room()
    assert state.closed == f"disk full: state_dir {tmp_path} cannot be written"


def test_writing_leaves_no_half_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_atomically(path, b"one", sync=True)
    write_atomically(path, b"two", sync=False)
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_contact_counts_on_across_restarts_but_gives_a_first_chance(tmp_path: Path) -> None:
    state, clock = StateDirectory(tmp_path), StillClock()
    first = Contact(clock, state, 0)
    first.made()
    first.save()
    clock.seconds += 100
    again = Contact(clock, state, 0)
    again.load()
    assert again.age() == 0
    clock.seconds += FIRST_CHANCE
    assert again.age() == 100 + FIRST_CHANCE
    again.made(age=2)
    assert again.age() == 2


def test_r27_between_two_renewals_nobody_is_out_of_contact(tmp_path: Path) -> None:
    clock = StillClock()
    contact = Contact(clock, StateDirectory(tmp_path), 5)
    contact.made()
    clock.seconds += 5
    assert contact.age() == 0
    clock.seconds += 3
    assert contact.age() == 3


def test_r27_contact_is_never_older_than_known(tmp_path: Path) -> None:
    clock = StillClock()
    contact = Contact(clock, StateDirectory(tmp_path), 0)
    contact.made()
    contact.made(age=50)
    assert contact.age() == 0


GOOD = manifests.canonical(Manifest(id="web", command=["x"]))
BAD_VALUES = b'{"command":[],"id":"web"}'
NO_JSON = b"<html>"


@pytest.mark.parametrize(
    ("sha", "body", "reason"),
    [
        ("0" * 64, GOOD, "found a body with digest"),
        (manifests.digest(BAD_VALUES), BAD_VALUES, "command: found"),
        (manifests.digest(NO_JSON), NO_JSON, "malformed"),
        (manifests.digest(b" " * 300_000), b" " * 300_000, "300000 bytes, expected at most 262144"),
    ],
)
def test_manifests_are_believed_only_if_they_fit(sha: str, body: bytes, reason: str) -> None:
    with pytest.raises(ManifestUnusable, match=reason):
        verified(sha, body)
    assert verified(manifests.digest(GOOD), GOOD).id == "web"
