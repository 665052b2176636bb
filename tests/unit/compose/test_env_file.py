"""Files of variables are read as compose reads them: forms, quotes, variables in values, and mistakes.

The vectors are those of compose-go's package ``dotenv`` (Apache License 2.0). Where they differ: text behind
a closing quote, and a line without a name, are refused instead of read as something else.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.compose.interpolation import read_into, read_raw_into
from store.errors import InputInvalid
from tests.unit.compose.disk import project, service


def variables(text: str, **env: str) -> dict[str, str]:
    found: dict[str, str] = {}
    read_into(found, text, "a.env", env)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FOO=bar", "bar"),
        ("FOO =bar", "bar"),
        ("FOO= bar", "bar"),
        ("\tFOO=bar ", "bar"),
        ("FOO=", ""),
        ("FOO: 1", "1"),
        ("FOO: Foo=bar", "Foo=bar"),
        ("FOO=1:B", "1:B"),
        ("FOO=foobar=", "foobar="),
        ("export FOO=2", "2"),
        ("  export\tFOO=2\r\n", "2"),
        ("\ufeffFOO=1", "1"),
        ("# FOO=2\n\n \t # FOO=3\nFOO=1", "1"),
        ('FOO="bar"', "bar"),
        ("FOO='bar'", "bar"),
        ('FOO="escaped\\"bar"', 'escaped"bar'),
        ("FOO='it\\'s'", "it's"),
        ("FOO=\"'d'\"", "'d'"),
        ("FOO='\\n'", "\\n"),
        ('FOO="bar\\nbaz"', "bar\nbaz"),
        ("FOO=a\\tb", "a\\tb"),
        (r'FOO="Z\aZ\bZ\fZ\nZ\rZ\tZ\vZ\\Z\0123Z"', "Z\aZ\bZ\fZ\nZ\rZ\tZ\vZ\\ZSZ"),
        (r'FOO="bar\\\n\ b\az"', "bar\\\n\\ b\az"),
        (r'FOO="\x07\u12e4"', r"\x07\u12e4"),
        ('FOO="one\ntwo"', "one\ntwo"),
        ("FOO=bar # this is foo", "bar"),
        ("FOO=bar #", "bar"),
        ("FOO=100%$", "100%$"),
        ('FOO="a$ $1"', "a$ $1"),
        ("FOO=123#no-comment", "123#no-comment"),
        ('FOO="bar#baz" # comment', "bar#baz"),
        ("FOO='ba#r'#", "ba#r"),
        ("A=test\nFOO=$A", "test"),
        ("A=test\nFOO=${A}bar", "testbar"),
        ('A=test\nFOO="quote $A"', "quote test"),
        ("A=test\nFOO='quote $A'", "quote $A"),
        ('A=test\nFOO="foo\\${A} ${A}"', "foo${A} test"),
        ("FOO=$$A", "$A"),
        ("FOO=$NONE", ""),
        ("FOO=${NONE:-d}", "d"),
        ("CALLER=file\nFOO=$CALLER", "caller"),
    ],
)
def test_a_line_is_read(text: str, expected: str) -> None:
    assert variables(text, CALLER="caller")["FOO"] == expected


def test_names_have_dots_dashes_and_letters_of_any_language() -> None:
    text = "VAR-WITH-DASHES=a\nVAR.WITH.DOTS=b\na[1]=c\nárvíztűrő=d\nexportFOO=e\nexport.FOO=f"
    assert list(variables(text).values()) == ["a", "b", "c", "d", "e", "f"]


def test_a_name_alone_is_the_callers() -> None:
    assert variables("A\nB\nC=1\nD", A="a", D="d") == {"A": "a", "C": "1", "D": "d"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\nB C D\n", "a.env: line 2: found 'B C D', expected NAME=value"),
        ("lol$wut", "line 1: found 'lol$wut', expected NAME=value"),
        ('="value"', "expected NAME=value"),
        ("A='x\ny'\n\nB=\"z", "line 4: found an open quote, expected a closing"),
        ("A='value\\'", "found an open quote"),
        ("A='a'b", "found text after the closing quote, expected none"),
        ("# note\nA=pa${ word", "a.env: line 2: found ${ without a variable"),
        ("A B=hunter2", "found 'A B', expected NAME=value"),
        ("A=${B:?set it}", "a.env: line 1: variable B has no value: set it"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        variables(text)
    assert message in caught.value.message
    assert "hunter2" not in caught.value.message


def test_values_of_a_raw_file_are_the_rest_of_their_lines() -> None:
    found: dict[str, str] = {}
    read_raw_into(found, '# note\n\nA="x" # $Y\n  B= \'\nC\nD\n', "a.env", {"C": "c"})
    assert found == {"A": '"x" # $Y', "B": " '", "C": "c"}
    for text in ("A B=1", "=1", "export A=1"):
        with pytest.raises(InputInvalid, match=r"^a\.env: line 1: found .*, expected NAME=value"):
            read_raw_into(found, text, "a.env", {})


@given(st.text(alphabet="A=:'\"\\$#{} \nexport-", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputInvalid):
        variables(text)
    with contextlib.suppress(InputInvalid):
        read_raw_into({}, text, "a.env", {})


def test_files_lie_under_the_environment_and_know_it_and_the_files_before() -> None:
    found = service(
        """
        env_file: [a.env, {path: b.env}, {path: none.env, required: false}, {path: c.env, format: raw}]
        environment: {B: own, D: , GONE: }
        """,
        files={
            "a.env": "A=1\nB='x y'\nE=${A}-${B}-${CALLER}\n# note\nexport F=\"q\"\nGONE=1\n",
            "b.env": "A=2\nG\nH\nI=$E-$A\n",
            "c.env": "J='$A'",
        },
        env={"D": "d", "G": "g", "CALLER": "me"},
    )
    assert found.container.env == {
        "A": "2", "B": "own", "D": "d", "E": "1-own-me", "F": "q", "G": "g", "I": "1-own-me-2", "J": "'$A'",
    }  # fmt: skip


def test_a_variable_of_a_file_that_has_no_value_is_warned_of() -> None:
    found = project("services: {a: {image: x, env_file: a.env}}", files={"a.env": "A=$NONE"})
    assert found.warnings == ("shop/a.env: line 1: variable NONE is not set, so it is empty",)


def test_another_format_is_refused() -> None:
    with pytest.raises(
        InputInvalid, match=r"services\.web\.env_file\[0\]\.format: found 'row', expected raw"
    ):
        service("env_file: [{path: a.env, format: row}]", files={"a.env": "A=1"})
