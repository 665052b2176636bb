"""An alert that no human could act on is refused where it is made (spec: both fields mandatory)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from alerting.alert import Alert
from alerting.errors import AlertInvalid
from farmd.kinds import runbook

DOCS = Path(__file__).resolve().parents[3] / "docs"
ROWS = re.findall(r"^\| (`.+?) \| (?:high|low)", (DOCS / "alerting.md").read_text(), re.MULTILINE)
KEYS = [re.sub(r"<[^>]*>", "a1b2", key) for row in ROWS for key in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"summary": "", "incident_key": "k"}, "alert.summary"),
        ({"summary": "  ", "incident_key": "k"}, "alert.summary"),
        ({"summary": "two\nlines", "incident_key": "k"}, "alert.summary"),
        ({"summary": "x" * 1025, "incident_key": "k"}, "alert.summary"),
        ({"summary": "s", "incident_key": ""}, "alert.incident_key"),
        ({"summary": "s", "incident_key": "k", "description": "x" * 20_000}, "alert.description"),
        ({"summary": "s", "incident_key": "k", "urgency": "medium"}, "alert.urgency"),
    ],
)
def test_an_incomplete_alert_is_refused_by_field(fields: dict[str, str], named: str) -> None:
    with pytest.raises(AlertInvalid) as refused:
        Alert(**fields)  # type: ignore[arg-type]
    assert refused.value.message.startswith(f"{named}: found ")
    assert ", expected " in refused.value.message or "expected" in refused.value.message
    assert "\n" not in refused.value.message


def test_the_end_of_an_incident_keeps_all_but_the_state() -> None:
    alert = Alert(summary="s", incident_key="k", urgency="high", details={"a": "b"})
    over = alert.resolved()
    assert (over.state, over.incident_key, over.urgency, over.details) == (
        "resolved",
        "k",
        "high",
        {"a": "b"},
    )


@pytest.mark.parametrize("key", KEYS)
def test_each_incident_has_a_name_for_its_sort_and_a_runbook(key: str) -> None:
    kind = "failsafe" if key.startswith(("failsafe", "no_rcs_found")) else "rcs"
    alert = Alert(summary="s", incident_key=key, labels={"kind": kind})
    assert re.fullmatch(r"Farmd[A-Z][A-Za-z]+", alert.name)
    assert "a1b2" not in alert.name.lower()
    assert (DOCS / "runbooks" / f"{runbook(alert.name)}.md").is_file()
