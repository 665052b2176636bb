"""Selectors: Kubernetes' grammar, canonical text, and one clear line for what does not parse."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import InputInvalid
from store.selectors import Operator, Requirement, Selector, parse, valid_key, valid_labels, valid_value

NODE = {"zone": "a", "disk": "ssd", "empty": "", "example.com/team": "web"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("   ", True),
        ("zone=a", True),
        ("zone==a", True),
        ("zone = b", False),
        ("zone!=b", True),
        ("zone!=a", False),
        ("absent!=a", True),
        ("absent=a", False),
        ("zone in (a,b)", True),
        ("zone in (b, c)", False),
        ("zone notin (b,c)", True),
        ("zone notin(a)", False),
        ("absent notin (a)", True),
        ("disk", True),
        ("absent", False),
        ("!absent", True),
        ("! disk", False),
        ("empty=", True),
        ("zone=", False),
        ("absent=", False),
        ("empty in ()", True),
        ("zone in (,a)", True),
        ("example.com/team=web", True),
        ("zone=a,disk=ssd,!gpu", True),
        ("zone=a,disk=hdd", False),
        ("zone=a,zone=b", False),
    ],
)
def test_what_matches(text: str, matches: bool) -> None:
    assert parse(text).matches(NODE) is matches


@pytest.mark.parametrize("word", ["in", "notin"])
def test_the_words_of_operators_are_keys_and_values_elsewhere(word: str) -> None:
    assert parse(word).matches({word: ""})
    assert parse(f"{word} {word} ({word})").matches({word: word}) is (word == "in")
    assert parse(f"{word}={word}").matches({word: word})


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("b=1,a=2", "a=2,b=1"),
        ("a==1", "a=1"),
        ("a in (2,1,2)", "a in (1,2)"),
        ("a in (1)", "a=1"),
        ("a notin (1)", "a!=1"),
        (" !a , b ", "!a,b"),
        ("a=1,a=1", "a=1"),
        ("a in ()", "a="),
    ],
)
def test_the_text_is_canonical(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)


@pytest.mark.parametrize("text", ["a=1,b=2", "b=2,a=1", " a == 1 , b in (2)"])
def test_label_selector_equivalence(text: str) -> None:
    assert parse(text) == parse("a=1,b=2")
    assert hash(parse(text)) == hash(parse("a=1,b=2"))


@pytest.mark.parametrize(
    ("text", "position", "found", "expected"),
    [
        ("a=1,", 5, "the end", "a label key"),
        (",a", 1, "','", "a label key"),
        ("a,,b", 3, "','", "a label key"),
        ("!", 2, "the end", "a label key"),
        ("=a", 1, "'='", "a label key"),
        ("a b", 3, "'b'", "'=', '==', '!=', 'in', 'notin', ',' or the end"),
        ("a > 3", 3, "'>'", "'=', '==', '!=', 'in', 'notin', ',' or the end"),
        ("a in b", 6, "'b'", "'('"),
        ("a in", 5, "the end", "'('"),
        ("a in (b", 8, "the end", "',' or ')'"),
        ("a in (b c)", 9, "'c'", "',' or ')'"),
        ("a=b c", 5, "'c'", "',' or the end"),
        ("a=(b)", 3, "'('", "a label value"),
        ("a===b", 4, "'='", "a label value"),
        ("a=b)", 4, "')'", "',' or the end"),
        ("zone=-x", 6, "'-x'", "a label value: at most 63 letters"),
        ("-x=1", 1, "'-x'", "a label key: at most 63 letters"),
        ("A_/x=1", 1, "'A_/x'", "a label key: at most 63 letters"),
        ("a=\U0001f600", 3, "'\U0001f600'", "a label value"),
    ],
)
def test_what_does_not_parse_is_one_line(text: str, position: int, found: str, expected: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        parse(text, "node_selector")
    assert caught.value.message.startswith(
        f"node_selector: position {position}: found {found}, expected {expected}"
    )
    assert "\n" not in caught.value.message


def test_a_selector_that_contradicts_itself_matches_nothing() -> None:
    selector = parse("x=1,x=0")
    assert str(selector) == "x=0,x=1"
    for labels in ({}, NODE, {"x": "0"}, {"x": "1"}):
        assert not selector.matches(labels)


def test_the_empty_text_is_the_selector_that_matches_everything() -> None:
    assert parse("") == Selector()
    assert str(Selector()) == ""


WORDS = string.ascii_letters + string.digits + "-_."
names = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,10}[A-Za-z0-9])?", fullmatch=True)
keys = names | st.builds("{}/{}".format, st.sampled_from(["example.com", "a", "x-1.io"]), names)
values = names | st.just("")
requirements = st.builds(
    lambda key, operator, found: Requirement(key, operator, tuple(sorted(found))),
    keys,
    st.sampled_from([Operator.IN, Operator.NOT_IN]),
    st.sets(values, min_size=1, max_size=4),
) | st.builds(Requirement, keys, st.sampled_from([Operator.EXISTS, Operator.ABSENT]))
selectors = st.lists(requirements, max_size=5).map(Selector.of)


@given(selectors)
def test_every_selector_survives_its_text(selector: Selector) -> None:
    assert parse(str(selector)) == selector
    assert str(parse(str(selector))) == str(selector)


@given(selectors, st.dictionaries(keys, values, max_size=4))
def test_a_selector_and_its_text_match_the_same(selector: Selector, labels: dict[str, str]) -> None:
    picked = labels | {r.key: r.values[0] for r in selector.requirements[:2] if r.values}
    assert parse(str(selector)).matches(picked) is selector.matches(picked)


@given(st.text(alphabet=WORDS + "=!(), <>/", max_size=30) | st.text(max_size=15))
def test_any_text_parses_or_is_refused_in_one_line(text: str) -> None:
    try:
        selector, refusal = parse(text), "expected"
    except InputInvalid as error:
        selector, refusal = Selector(), error.message
    assert "\n" not in refusal
    assert "expected" in refusal
    assert parse(str(selector)) == selector


@pytest.mark.parametrize("key", ["a", "A.b_c-d", "x" * 63, "example.com/a", "a/b", f"{'a.' * 126}a/b"])
def test_keys_that_labels_can_have(key: str) -> None:
    assert valid_key(key, "labels") == key


@pytest.mark.parametrize(
    "key",
    ["", "-a", "a-", "x" * 64, "/a", "a/", "a/b/c", "Example.com/a", "a..b/c", "a b", f"{'a.' * 127}a/b"],
)
def test_keys_that_labels_cannot_have(key: str) -> None:
    with pytest.raises(InputInvalid, match=r"^labels: found .*, expected a label key"):
        valid_key(key, "labels")


@pytest.mark.parametrize("value", ["", "1", "a.b", "x" * 63])
def test_values_that_labels_can_have(value: str) -> None:
    assert valid_value(value, "labels") == value


@pytest.mark.parametrize("value", [" ", "a b", "x" * 64, "_", "ä", "a\n"])
def test_values_that_labels_cannot_have(value: str) -> None:
    with pytest.raises(InputInvalid, match=r"^labels\.zone: found .*, expected a label value"):
        valid_labels({"zone": value}, "labels")
