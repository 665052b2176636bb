"""Files that people write: one clear line for everything that cannot be meant, and no blow-up."""

from __future__ import annotations

import time

import pytest
import yaml

from farmd.cli.noun_edit import text_of
from farmd.cli.output import as_yaml
from farmd.commands import documents
from store.errors import InputInvalid


def refused(text: str, source: str = "a.yaml") -> str:
    with pytest.raises(InputInvalid) as caught:
        documents.parse(text, source)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith(f"{source}: ")
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("0o10", 8),
        ("0x10", 16),
        ("-7", -7),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("190:20:30.15", "190:20:30.15"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        *((word, word) for word in ("yes", "No", "on", "OFF", "y")),
        ("true", True),
        ("FALSE", False),
        ("2026-01-02", "2026-01-02"),
        ("~", None),
        ('"010"', "010"),
    ],
)
def test_scalars_are_read_as_in_yaml_1_2(text: str, value: object) -> None:
    [(_, found)] = documents.parse(f"a: {text}\n", "a.yaml")
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize("text", ["010", "0o10", "1e3", "yes", "1:30", "2026-01-02", "~", "", "<<", "0x1f"])
def test_text_that_is_printed_as_yaml_is_read_as_the_same_text(text: str) -> None:
    printed = as_yaml({"a": text})
    assert documents.parse(printed, "a.yaml") == [("a.yaml", {"a": text})]
    assert yaml.safe_load(printed) == {"a": text}  # and by what reads YAML 1.1


def test_several_documents_say_which_they_are() -> None:
    found = documents.parse("a: 1\n---\n---\nb: 2\n", "a.yaml")
    assert found == [("a.yaml (document 1)", {"a": 1}), ("a.yaml (document 2)", {"b": 2})]


def test_json_is_read_as_json_and_as_yaml() -> None:
    assert documents.parse('{"a": [1, "x"]}', "a.json") == [("a.json", {"a": [1, "x"]})]
    assert documents.parse('{"a": [1, "x"]}', "stdin") == [("stdin", {"a": [1, "x"]})]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no document"),
        ("---\n...\n", "no document"),
        ("# only a comment\n", "no document"),
        ("a:\n\tb: c", "found a tab, expected spaces at line 2, column 1"),
        ("a: [1", "expected ',' or ']' at line 2"),
        ("a: b: c", "line 1"),
        ("a: 1\n\tb: 2", "line 2"),
        ("a: 1\na: 2", "found twice"),
        ("a: {x: 1, x: 2}", "found twice"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: !secret x", "could not determine a constructor"),
        ("a: &x [*x]", "*x"),
        ("a: *nowhere", "*nowhere"),
        (
            "a: &x 1\n---\nb: 2\nc: *x",
            "line 4: found the alias *x, expected a value above it in the same document",
        ),
        ("a: \x00", "not YAML"),
        ("? [1, 2]\n: x\n? {a: b}\n: y", "unhashable"),
        ("a: !!int x", "not YAML"),
        ("x" * (documents.MAX_BYTES + 1), str(documents.MAX_BYTES)),
    ],
)
def test_what_is_no_good_yaml_is_one_line(text: str, named: str) -> None:
    assert named in refused(text)


def test_the_installs_of_others_are_read_whole() -> None:
    """The largest definition of Argo CD has 1.4 MB in one document, and 46,000 values."""
    values = "".join(f"  field-{number}: {'x' * 20}\n" for number in range(60_000))
    ((_, found),) = documents.parse(f"spec:\n{values}", "a.yaml")
    assert len(found["spec"]) == 60_000


@pytest.mark.parametrize(("opening", "times"), [("[", 65), ("[", 900), ("[", 5000), ("- ", 65), ("- ", 3000)])
def test_too_many_levels_are_one_line(opening: str, times: int) -> None:
    """libyaml itself refuses a text of which one line opens 1,000 lists (in the wheels of PyYAML 6.0.4)."""
    message = refused(opening * times)
    assert "found more than 64 levels, expected fewer" in message or (
        times > 1000 and message == "a.yaml: not YAML: exceeded maximum nesting depth at line 1, column 1001"
    )


@pytest.mark.parametrize(
    ("text", "named"), [("{", "not JSON"), ('{"a": 1, "a": 2}', "found twice"), ("[" * 5000, "not JSON")]
)
def test_what_is_no_good_json_is_one_line(text: str, named: str) -> None:
    assert named in refused(text, "a.json")


def test_aliases_that_blow_up_are_refused_before_they_do() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    before = time.process_time()
    assert "aliases" in refused(bomb)
    assert time.process_time() - before < 5


def test_honest_aliases_and_merges_work() -> None:
    text = "base: &b {x: 1}\nmine: {<<: *b, y: 2}\nsame: *b\n"
    assert documents.parse(text, "a.yaml")[0][1] == {
        "base": {"x": 1},
        "mine": {"x": 1, "y": 2},
        "same": {"x": 1},
    }


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(
        InputInvalid, match=f"/dev/zero: found more than {documents.MAX_BYTES} bytes, expected fewer"
    ):
        text_of("/dev/zero")
