"""What people see of a difference: short, where it begins, and never a secret."""

from __future__ import annotations

import msgspec
import pytest

from farmd.commands.difference import fields, lines, manifest_lines
from store.artifacts import Artifact
from store.manifests import Manifest
from store.policies import Policy
from store.rcs import ReplicationController
from store.schedules import Schedule

POD = Manifest(id="hello", command=["sleep"])


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (POD, POD, []),
        (POD, Manifest(id="hello", command=["nap"]), ['pod.command: ["sleep"] -> ["nap"]']),
        (POD, Manifest(id="hello", command=["sleep"], args=["9"]), ['pod.args: (default) -> ["9"]']),
        (
            Manifest(id="hello", command=["sleep"], env={"A": "old-secret", "B": "1"}),
            Manifest(id="hello", command=["sleep"], env={"A": "new-secret", "B": "1"}),
            ["pod.env: changes A"],
        ),
        (None, POD, ["pod: the manifest that it has now cannot be read"]),
    ],
)
def test_each_field_of_the_pod_is_one_line(
    before: Manifest | None, after: Manifest, lines: list[str]
) -> None:
    assert manifest_lines(before, after) == lines


def test_a_field_that_had_no_value_is_told_in_peoples_words() -> None:
    made = ReplicationController(id="a1", name="web", manifest="0" * 64, replicas_desired=3)
    before, after = fields(made, msgspec.structs.replace(made, rollout=Policy(minimum=2)), {})
    assert lines(before, after) == ['rollout none -> {"minimum":2}']


def test_long_texts_are_shown_where_they_begin_to_differ() -> None:
    before, after = (
        Manifest(id="x", command=["x"], args=["a" * 500 + word + "b" * 500]) for word in ("ONE", "TWO")
    )
    (line,) = manifest_lines(before, after)
    assert "aaaONEb" in line
    assert "aaaTWOb" in line
    assert len(line) < 250


def test_the_values_of_a_schedules_job_are_never_told():
    pod = {"id": "tick", "env": {"KEY": "s3cret"}, "files": {"/x": "s3cret"}}
    job = {"types": [{"name": "w", "pod": pod}]}
    before, after = Schedule(id="0", name="tick"), Schedule(id="0", name="tick", job=job)
    told = str(fields(before, after, {}))
    assert "s3cret" not in told
    assert "KEY" in told


def test_a_document_in_a_record_is_shown_as_files_have_it_and_progress_is_no_difference() -> None:
    before = Schedule(id="0", name="tick", job={"types": [{"name": "a"}]}, last=7.0)
    assert fields(before, msgspec.structs.replace(before, last=0.0), {}) == ({}, {})
    _, after = fields(before, msgspec.structs.replace(before, job={"types": [{"name": "b"}], "ttl": 5}), {})
    assert after == {"job": 'ttl=5,types=[{"name":"b"}]'}


def test_a_change_of_an_artifact_shows_the_whole_address_and_no_query() -> None:
    def pod(**fields: str) -> Manifest:
        given = {"source": f"https://artifacts.example/{'long/' * 30}app?key=s3cret", "sha256": "0" * 64}
        return Manifest(id="web", command=["x"], artifacts=[Artifact(**(given | {"to": "app"} | fields))])

    address = f"https://artifacts.example/{'long/' * 30}app"
    old = f"{address}, sha256 000000000000, mode 444"
    none = Manifest(id="web", command=["x"])
    assert manifest_lines(none, pod()) == [f"pod.artifacts app: (none) -> {old}"]
    assert manifest_lines(pod(), pod(source="https://b/app", sha256="1" * 64)) == [
        f"pod.artifacts app: {old} -> https://b/app, sha256 111111111111, mode 444"
    ]
    assert manifest_lines(pod(), pod(source=f"{address}?key=other")) == [
        f"pod.artifacts app: {old} -> {old} with another query"
    ]
