"""Each setting and each field of a workload says whether it may hold a secret; a new one must, too."""

from __future__ import annotations

from farmd.config.alerts import SinkSection
from farmd.config.fields import keys
from farmd.config.sections import every_key
from farmd.tables.manifests import HIDDEN, without_values
from tests import canaries


def test_every_setting_has_a_row_in_the_table_of_canaries() -> None:
    known = {f"{section}.{key.name}" for section, key in every_key()}
    known |= {f"sinks.{name}" for name in keys(SinkSection)}
    assert known == canaries.CONFIGURATION.keys()


def test_every_field_that_a_workload_is_described_by_is_shown_or_hidden() -> None:
    for record, secret in canaries.SECRET_FIELDS.items():
        shown = canaries.SHOWN_FIELDS[record]
        assert secret & shown == set(), record
        assert secret | shown == canaries.fields(record), record


def test_values_of_variables_and_contents_of_files_are_hidden_wherever_they_stand() -> None:
    told = {
        "pre_deploy": {"command": ["migrate"], "env": {"KEY": "s3cret"}},
        "labels": {"env": "prod"},
        "containers": [
            {"image": "x", "env": [{"name": "KEY", "value": "s3cret"}, {"name": "A", "valueFrom": 1}]}
        ],
        "files": [{"path": "/etc/x", "content": "s3cret"}],
        "before": ({"runs": {"env": {}}},),
    }
    shown = without_values(told)
    assert "s3cret" not in str(shown)
    assert shown["labels"] == {"env": "prod"}
    assert shown["pre_deploy"]["env"] == {"KEY": HIDDEN}
    assert shown["containers"][0]["env"] == [{"name": "KEY", "value": HIDDEN}, {"name": "A", "valueFrom": 1}]
