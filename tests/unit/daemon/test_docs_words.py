"""The manual explains each word that farmctl shows, and states the limits of each field of a file."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec
import pytest

from farmd.commands.outlook import Outlook
from farmd.daemonset.spec import DaemonSetSpec
from farmd.replication.spec import ControllerSpec
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


def test_each_boundary_of_the_threat_model_names_tests_that_exist() -> None:
    rows = (DOCS / "trust.md").read_text().partition("## Boundaries\n")[2].partition("\n## ")[0]
    boundaries = [line for line in rows.splitlines() if line.startswith("| ")][1:]
    for boundary in boundaries:
        named = re.findall(r"`(tests/[\w/]+\.py)`", boundary)
        assert named, boundary
        assert [path for path in named if not (DOCS.parent / path).is_file()] == [], boundary


def test_each_word_of_a_dry_run_is_explained() -> None:
    place = ("web1", "hello")
    outlook = Outlook(
        adds=(place,), removes=(place,), replaces=(place,), moves=((place, place),), unplaced=("why",)
    )
    told = (DOCS / "cli.md").read_text()
    for line in outlook.lines():
        word = line.partition(":")[0].partition(" web1")[0]
        assert f"`{word}" in told
