"""Variables in compose files: the specification's forms, what is left empty, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.compose.interpolation import Interpolation
from store.errors import InputInvalid

ENV = {"A": "a", "EMPTY": "", "B": "b", "_x1": "x"}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("$A", "a"),
        ("${A}", "a"),
        ("$A$B", "ab"),
        ("${A}b$_x1.", "abx."),
        ("$$A", "$A"),
        ("$${A}", "${A}"),
        ("${EMPTY}", ""),
        ("${NONE}", ""),
        ("${NONE:-d}", "d"),
        ("${NONE-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY-d}", ""),
        ("${A:-d}", "a"),
        ("${NONE:-${A}}", "a"),
        ("${NONE:-${NEITHER:-${B}}}", "b"),
        ("${NONE:-a:b}", "a:b"),
        ("${NONE:-$$}", "$"),
        ("${NONE:-}", ""),
        ("${A:+set}", "set"),
        ("${EMPTY:+set}", ""),
        ("${EMPTY+set}", "set"),
        ("${NONE+set}", ""),
        ("${A:?why}", "a"),
        ("${EMPTY?why}", ""),
        ("${NONE:-{}}", "{}"),
        ("a${NONE:-}}", "a}"),
        ("100%", "100%"),
        ("$", "$"),
        ("a$ b", "a$ b"),
        ("$2a$14$1l.$A", "$2a$14$1l.a"),
        ("${NONE:-$2a$14$1l}", "$2a$14$1l"),
    ],
)
def test_a_template_is_filled(template: str, expected: str) -> None:
    assert Interpolation(ENV).text(template, "x") == expected.replace("{}}", "{}}")


@pytest.mark.parametrize("template", ["${", "${A", "${}", "${1}", "${A!b}", "${A:b}", "${A-"])
def test_what_is_no_template_is_refused_by_its_path(template: str) -> None:
    with pytest.raises(InputInvalid, match=r"^services\.web\.image: found .*, expected variables such as"):
        Interpolation(ENV).document({"services": {"web": {"image": template}}}, "")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("${NONE:?set it}", "variable NONE has no value: set it"),
        ("${NONE?}", "variable NONE has no value"),
        ("${EMPTY:?it is for $A}", "variable EMPTY has no value: it is for a"),
    ],
)
def test_a_variable_that_must_have_a_value_is_refused_in_the_words_of_its_file(
    template: str, words: str
) -> None:
    with pytest.raises(InputInvalid) as caught:
        Interpolation(ENV).text(template, "services.web.image")
    assert caught.value.message == f"services.web.image: {words}"


def test_keys_and_numbers_stay_and_unset_variables_are_named() -> None:
    interpolation = Interpolation(ENV)
    assert interpolation.document({"$A": [1, True, None, "$A$NONE"]}, "") == {"$A": [1, True, None, "a"]}
    assert interpolation.unset.keys() == {"NONE"}


@given(st.text(alphabet="$${}A:-?+ b"))
def test_any_template_is_filled_or_refused(template: str) -> None:
    with contextlib.suppress(InputInvalid):
        assert isinstance(Interpolation(ENV).text(template, "x"), str)


@given(st.text())
def test_dollars_that_are_doubled_come_back(text: str) -> None:
    assert Interpolation({}).text(text.replace("$", "$$"), "x") == text
