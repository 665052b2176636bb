"""An alert that no human could act on is refused where it is made (spec: both fields mandatory)."""

from __future__ import annotations

import pytest

from alerting.alert import Alert
from alerting.errors import AlertInvalid


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
