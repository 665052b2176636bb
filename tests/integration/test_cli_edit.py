"""A record in a person's editor, and what a file would change of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.farmctl import Farmctl, in_cluster
from tests.people import hello

HELLO = hello(pod_env={"TOKEN": "secret"})
Editor = Callable[[str], Path]


@pytest.fixture
def farmctl(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Farmctl:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "edits"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "edits").mkdir()
    made = in_cluster(address, "web1")
    made.inside = True
    made.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(HELLO))
    return made


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    """Makes an editor of a shell script that is given the file; each file that it opens is kept."""

    def make(script: str) -> Path:
        seen = tmp_path / "seen"
        seen.mkdir()
        program = tmp_path / "editor"
        count = f'cp "$1" "{seen}/$(ls "{seen}" | wc -l)"'
        program.write_text(f"#!/bin/sh\n{count}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setenv("EDITOR", str(program))
        return seen

    return make


def record(farmctl: Farmctl) -> dict[str, Any]:
    found: dict[str, Any] = farmctl.ok("rc", "get", "hello", "-o", "json").json
    return found


def edits(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "edits").iterdir())


def test_what_a_person_saves_is_written_and_audited(farmctl: Farmctl, editor: Editor, tmp_path: Path) -> None:
    seen = editor("""sed -i 's/replicas: 3/replicas: 4/; s/- sleep/- pause/' "$1" """)
    done = farmctl.ok("rc", "edit", "rc/hello", "-y", "--reason", "more")
    assert done.out.startswith("rollout/hello created (")  # another pod comes by a rollout
    assert "replicas 3 -> 4" in done.err
    assert 'pod.command: ["sleep","9"] -> ["pause","9"]' in done.err
    assert record(farmctl)["replicas_desired"] == 3
    shown = (seen / "0").read_text().splitlines()
    assert shown[:2] == [
        "#: rc/hello: save to apply the change; exit without a change to cancel",
        "name: hello",
    ]
    (made, _) = farmctl.ok("audit", "list", "--item", "hello", "-o", "json").json["items"]
    assert (made["action"], made["reason"]) == ("rollout.create", "more")
    assert edits(tmp_path) == []


@pytest.mark.parametrize("script", ["true", ': > "$1"'])
def test_an_edit_that_saves_nothing_changes_nothing(
    farmctl: Farmctl, editor: Editor, tmp_path: Path, script: str
) -> None:
    editor(script)
    before = record(farmctl)
    done = farmctl.ok("rc", "edit", "hello")
    assert (done.out, done.err) == ("", "rc/hello: nothing was changed\n")
    assert record(farmctl) == before
    assert edits(tmp_path) == []


def test_an_editor_that_takes_its_file_away_writes_nothing(
    farmctl: Farmctl, editor: Editor, tmp_path: Path
) -> None:
    editor('rm "$1"')
    before = record(farmctl)
    done = farmctl("rc", "edit", "hello")
    assert (done.code, done.out) == (2, "")
    assert "found no file after it, expected" in done.err
    assert "what you wrote" not in done.err
    assert record(farmctl) == before
    assert edits(tmp_path) == []


def test_what_does_not_fit_opens_the_editor_again_with_the_error(farmctl: Farmctl, editor: Editor) -> None:
    seen = editor(
        """if grep -q 'replicas: many' "$1"; then sed -i 's/replicas: many/replicas: 5/' "$1"
        else sed -i 's/replicas: 3/replicas: many/' "$1"; fi"""
    )
    farmctl.ok("rc", "edit", "hello")
    assert record(farmctl)["replicas_desired"] == 5
    first, second = ((seen / name).read_text() for name in ("0", "1"))
    assert second.startswith("#: edit: replicas: ")
    assert second.splitlines()[1:] == [
        line.replace("replicas: 3", "replicas: many") for line in first.splitlines()[1:]
    ]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("s/^name: hello/name: other/", "name: found 'other', expected 'hello': a name never changes"),
        ("s/id: hello/id: other/", "hello: pod.id: found 'other', expected 'hello', which its pods bear"),
        ("s/^name: hello/nmae: hello/", "edit: nmae: "),
    ],
)
def test_an_error_that_is_left_as_it_stands_writes_nothing_and_keeps_the_text(
    farmctl: Farmctl, editor: Editor, tmp_path: Path, script: str, said: str
) -> None:
    editor(f"""sed -i '{script}' "$1" """)
    before = record(farmctl)
    left = farmctl("rc", "edit", "hello")
    assert left.code == 10
    (kept,) = edits(tmp_path)
    first, second = left.err.splitlines()
    assert first == f"farmctl: what you wrote is in {kept}"
    assert second.startswith(f"farmctl: cancelled; nothing was written: {said}")
    assert record(farmctl) == before


def test_r13_what_somebody_else_changed_meanwhile_is_not_overwritten(
    farmctl: Farmctl, editor: Editor, tmp_path: Path
) -> None:
    other = f"{sys.executable} -m farmd.cli rc set-replicas hello 7"
    editor(f"""{other} > /dev/null 2>&1 ; sed -i 's/replicas: 3/replicas: 4/' "$1" """)
    refused = farmctl("rc", "edit", "hello", "-y")
    assert refused.code == 5
    assert "farmctl: rc/hello changed since it was read; nothing was written" in refused.err
    assert record(farmctl)["replicas_desired"] == 7
    (kept,) = edits(tmp_path)
    assert "replicas: 4" in kept.read_text()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/nosuch/editor", "editor '/nosuch/editor' cannot be run: "),
        ("false", "editor 'false': found exit code 1, expected 0; nothing was written"),
    ],
)
def test_an_editor_that_fails_writes_nothing(
    farmctl: Farmctl, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    monkeypatch.setenv("VISUAL", command)
    refused = farmctl("rc", "edit", "hello")
    assert refused.code == 2
    assert refused.err.startswith(f"farmctl: {said}")  # and no word of a file that was left


def test_without_a_terminal_no_editor_is_opened_that_nobody_chose(
    farmctl: Farmctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    refused = farmctl("rc", "edit", "hello")
    assert (refused.code, refused.err.splitlines()[0], edits(tmp_path)) == (
        2,
        "farmctl: EDITOR: found nothing and no terminal, expected an editor",
        [],
    )


def test_a_dry_run_of_an_edit_writes_nothing(farmctl: Farmctl, editor: Editor) -> None:
    editor("""sed -i 's/replicas: 3/replicas: 4/' "$1" """)
    dry = farmctl.ok("rc", "edit", "hello", "--dry-run")
    assert "replicas 3 -> 4" in dry.out + dry.err
    assert record(farmctl)["replicas_desired"] == 3


def test_a_difference_is_told_without_secrets_and_nothing_is_written(farmctl: Farmctl) -> None:
    before = record(farmctl)
    new = hello(name="new", pod_id="new")
    changed = HELLO | {"replicas": 5, "pod": HELLO["pod"] | {"env": {"TOKEN": "hidden"}}}
    shown = farmctl.ok("rc", "diff", "-f", "-", stdin=yaml.safe_dump_all([changed, new]))
    digests = re.compile("[0-9a-f]{12} -> [0-9a-f]{12}")
    assert digests.sub("A -> B", shown.out).splitlines() == [
        "rc/hello: update: pod A -> B, replicas 3 -> 5",
        "  pod.env: changes TOKEN",
        "rc/new: create: replicas 3, exists true",
    ]
    assert "hidden" not in shown.out + shown.err
    assert record(farmctl) == before
    assert farmctl("rc", "get", "new").code == 4


def test_the_exit_code_tells_of_changes_where_it_is_asked_to(farmctl: Farmctl) -> None:
    same, other = json.dumps(HELLO), json.dumps(HELLO | {"replicas": 5})
    equal = farmctl("rc", "diff", "-f", "-", "--detailed-exitcode", stdin=same)
    assert (equal.code, equal.out, equal.err) == (0, "", "rc/hello: nothing to change\n")
    assert farmctl("rc", "diff", "-f", "-", stdin=other).code == 0
    due = farmctl("rc", "diff", "-f", "-", "--detailed-exitcode", "-o", "name", stdin=other)
    assert (due.code, due.out) == (3, "rc/hello\n")
    told = farmctl.ok("rc", "diff", "-f", "-", "-o", "json", stdin=other).json
    assert (told["kind"], told["items"][0]["after"]) == ("DifferenceList", {"replicas": 5})
    assert yaml.safe_load(farmctl.ok("rc", "diff", "-f", "-", "-o", "yaml", stdin=other).out) == told
    assert farmctl("rc", "diff", "-f", "-", stdin="name: x").code == 2


def test_daemon_sets_are_edited_and_compared_as_controllers_are(farmctl: Farmctl, editor: Editor) -> None:
    logs = {"name": "logs", "rate": 3, "pod": {"id": "logs", "command": ["ship"]}}
    farmctl.ok("daemonset", "create", "-f", "-", stdin=yaml.safe_dump(logs))
    editor("""sed -i 's/rate: 3/rate: 4/' "$1" """)
    assert farmctl.ok("daemonset", "edit", "logs").out.startswith("daemonset/logs updated (")
    shown = farmctl("ds", "diff", "-f", "-", "--detailed-exitcode", stdin=yaml.safe_dump(logs))
    assert (shown.code, shown.out) == (3, "daemonset/logs: update: rate 4 -> 3\n")
