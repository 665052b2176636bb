"""What people write about priorities: the manifest's field, the switch, the example; and older records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from farmd.config_sources import ConfigInvalid, load
from farmd.replication.spec import parse_file
from scheduler.wire import question
from store import codec, manifest_check, manifests
from store.errors import InputInvalid
from store.nodes import Nomination, Reserved
from tests.fleets import fleet, node, request

EXAMPLE = Path(__file__).parents[3] / "examples/preemption.yaml"
BARE: dict[str, Any] = {"id": "web", "command": ["x"]}


@pytest.mark.parametrize("priority", [0, 50, 100])
def test_a_priority_is_a_number_from_0_to_100(priority: int) -> None:
    assert manifest_check.parse({**BARE, "priority": priority}, "f").priority == priority


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (101, "f: priority: found 101, expected 0 to 100"),
        (-1, "f: priority: found -1, expected 0 to 100"),
        ("high", "f: priority: found `str`, expected `int`"),
    ],
)
def test_any_other_is_refused_in_one_line(found: object, line: str) -> None:
    with pytest.raises(InputInvalid) as refused:
        manifest_check.parse({**BARE, "priority": found}, "f")
    assert refused.value.message == line


def test_the_usual_priority_changes_no_digest() -> None:
    said = manifest_check.parse({**BARE, "priority": 50}, "f")
    assert manifests.canonical(said) == manifests.canonical(manifest_check.parse(BARE, "f"))


def test_an_older_record_of_reservations_decodes_and_is_written_as_it_was() -> None:
    older = b'{"instances":{"db":{"cpu":1.0}},"generation":3}'
    record = codec.decode(Reserved, older, "k")
    assert (record.priority("db"), record.nominations) == (50, {})
    assert codec.encode(record) == older


def test_fields_of_newer_versions_survive_beside_nominations() -> None:
    record = Reserved(nominations={"web": Nomination(owner="a", priority=80)})
    raw = codec.rewrite(Reserved(), json.dumps({**json.loads(codec.encode(record)), "zones": ["x"]}).encode())
    assert json.loads(raw) == {"zones": ["x"]}


def test_the_switch_is_off_unless_it_is_set(tmp_path: Path) -> None:
    path = tmp_path / "farmd.toml"
    path.write_text("[scheduler]\npreemption = true\n")
    assert load(None, {}).config.scheduler.preemption is False
    assert load(path, {}).config.scheduler.preemption is True
    assert load(None, {"FARMD_SCHEDULER__PREEMPTION": "true"}).config.scheduler.preemption is True


def test_a_remote_scheduler_never_preempts_so_that_setting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "farmd.toml"
    path.write_text("[scheduler]\npreemption = true\nurl = 'http://x:1'\n")
    with pytest.raises(ConfigInvalid) as refused:
        load(path, {})
    assert "expected false with a remote scheduler, which never preempts" in str(refused.value)
    assert "scheduler.preemption" in str(refused.value)


def test_a_remote_scheduler_sees_room_that_is_made_for_others_as_used() -> None:
    made = node("n1", capacity={"cpu": 4.0}, reserved={"db": {"cpu": 1.0}}, index=7)
    waiting = {"api": Nomination(owner="first", priority=80, amounts={"cpu": 2.0})}
    made = replace(made, reserved=replace(made.reserved, nominations=waiting))
    asked = request(resources={"cpu": 1.0})
    assert json.loads(question(asked, fleet(made)))["nodes"][0]["used"] == {"cpu": 3.0}
    above = replace(asked, manifest=replace(asked.manifest, priority=90))
    assert json.loads(question(above, fleet(made)))["nodes"][0]["used"] == {"cpu": 1.0}


def test_the_example_is_a_controller_of_high_priority() -> None:
    ((_, spec),) = parse_file(EXAMPLE.read_text(), "preemption.yaml")
    assert (spec.pod.priority, spec.replicas, bool(spec.pod.resources)) == (80, 2, True)
