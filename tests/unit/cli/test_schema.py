"""farmctl schema and farmctl example: every kind, every field, and documents with a head."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from farmd.apps.bundle import parse
from farmd.cli.main import farmctl
from farmd.commands import documents, heads, schema
from farmd.commands.schema import EXAMPLES
from farmd.replication.commands import RC
from store.errors import InputInvalid
from tests.people import hello


def pages(path: str) -> Iterator[schema.FieldPage]:
    """A page, and those of all mappings in it."""
    found = schema.page(path)
    yield found
    for line in found.lines:
        if "mapping" in line.type and "mapping of text" not in line.type:
            yield from pages(f"{path}.{line.name}")


@pytest.mark.parametrize("noun", schema.nouns())
def test_each_field_of_each_kind_has_a_type_and_a_sentence(noun: str) -> None:
    for page in pages(noun):
        for line in page.lines:
            assert line.type, (page.path, line)
            assert line.words.endswith("."), (page.path, line.name)


@pytest.mark.parametrize("noun", schema.nouns())
def test_each_kind_has_a_json_schema_and_an_example_that_apply_takes(noun: str) -> None:
    made = json.loads(CliRunner().invoke(farmctl, ["schema", noun, "-o", "json"]).output)
    assert made["properties"]["kind"] == {"const": noun}
    shown = CliRunner().invoke(farmctl, ["example", noun]).output
    assert shown == EXAMPLES[noun]
    ((_, first), *_) = documents.parse(shown, "f")
    assert first["kind"] == noun
    if noun != "node":
        assert parse([(shown, "f.yaml")]).entries


def test_a_field_is_explained_and_a_wrong_one_is_refused_with_the_nearest() -> None:
    shown = CliRunner().invoke(farmctl, ["schema", "rc.pod.health"]).output
    assert "interval: time, default 2.0" in shown
    assert (
        "service.port\n  text. With pods:" in CliRunner().invoke(farmctl, ["schema", "service.port"]).output
    )
    shown = CliRunner().invoke(farmctl, ["schema", "service"]).output
    assert "container: mapping, required without pods\n" in shown
    assert "pods: list of text, required without container\n" in shown
    with pytest.raises(InputInvalid, match=r"rc\.pod: found no field 'helth', did you mean 'health'"):
        schema.page("rc.pod.helth")


@pytest.mark.parametrize(
    ("document", "message", "hint"),
    [
        ({"services": {"web": {}}}, "a compose file", "farmctl deploy -f FILE"),
        ({"apiVersion": "farmd/v1", "kind": "job"}, "kind: found job", "farmctl job run -f FILE"),
        ({"apiVersion": "farmd/v1", "kind": "daemonset"}, "expected rc", "farmctl daemonset create -f FILE"),
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, "apiVersion: found 'apps/v1'", heads.APPLY),
    ],
)
def test_a_document_that_came_to_the_wrong_command_names_the_right_one(
    document: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(InputInvalid) as refused:
        RC.file.parse(document, "f.yaml")
    assert message in refused.value.message
    assert hint in str(refused.value.fields["hint"])


def test_a_document_may_say_what_it_is() -> None:
    plain = RC.file.parse(hello(), "f")
    assert RC.file.parse({"apiVersion": "farmd/v1", "kind": "rc", **hello()}, "f") == plain


def test_a_pod_is_explained_although_it_is_no_document() -> None:
    shown = CliRunner().invoke(farmctl, ["schema", "pod.health"])
    assert shown.output.startswith("rc.pod.health\n")
