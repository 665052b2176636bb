"""The manual explains each word that farmctl shows, and states the limits of each field of a file."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec
import pytest

from farmd.commands.outlook import Outlook
from farmd.daemonset.commands import DaemonSetSpec
from farmd.replication.commands import ControllerSpec
from store.manifests import HealthCheck, Logs
from store.reality import Phase
from store.status import Status

DOCS = Path(__file__).parents[3] / "docs"
PHASES = {*typing.get_args(Phase), "waiting", "replacing", "restarting"}
STATES = {*typing.get_args(typing.get_type_hints(Status)["state"]), "pending", "deleting", "unowned"}
HEALTHS = {"unknown", "passing", "critical"}
NODES = {"ready", "unreadable", "absent", "lost", "cordoned", "draining", "drained"}
UNLIMITED = {"pod", "node_selector", "strategy", "on_lost", "disabled", "type", "port", "path", "command"}


@pytest.mark.parametrize("word", sorted(PHASES | STATES | HEALTHS | NODES))
def test_each_state_and_phase_is_explained(word: str) -> None:
    assert f"\n| `{word}` |" in (DOCS / "states.md").read_text()


@pytest.mark.parametrize(
    "kind", [ControllerSpec, DaemonSetSpec, HealthCheck, Logs], ids=lambda kind: kind.__name__
)
def test_the_limits_of_each_field_are_stated(kind: type[msgspec.Struct]) -> None:
    words = set(re.findall(r"[a-z_]+", (DOCS / "limits.md").read_text()))
    assert {field.name for field in msgspec.structs.fields(kind)} - words - UNLIMITED == set()


@pytest.mark.parametrize("section", ["Stolen credentials", "Boundaries"])
def test_each_sentence_of_the_threat_model_names_tests_that_exist(section: str) -> None:
    text = (DOCS / "trust.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and "held by |" not in line]
    assert rows
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert named or row.endswith("| – |"), row
        for path, test in named:
            file = DOCS.parent / path
            assert file.is_file(), row
            assert not test or f"def {test}(" in file.read_text(), row


def test_each_word_of_a_dry_run_is_explained() -> None:
    place = ("web1", "hello")
    outlook = Outlook(
        adds=(place,), removes=(place,), replaces=(place,), moves=((place, place),), unplaced=("why",)
    )
    told = (DOCS / "cli.md").read_text()
    for line in outlook.lines():
        word = line.partition(":")[0].partition(" web1")[0]
        assert f"`{word}" in told
