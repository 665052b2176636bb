"""The file of tokens: what fits, and each mistake as one line that shows no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from farmd.web import tokens
from farmd.web.tokens import Person
from store.errors import CredentialInvalid
from tests.farmctl import Farmctl

TOKEN, LINE = tokens.made("ada", "operator")


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_token_fits_its_line_alone(tmp_path: Path) -> None:
    other, line = tokens.made("eve", "viewer")
    found = tokens.read(written(tmp_path, f"# people\n\n{LINE}\n{line}\n"))
    assert tokens.fits(found, TOKEN) == found["ada"]
    assert tokens.fits(found, other) == found["eve"]
    assert found["eve"].person == Person("eve", "viewer")
    for wrong in ("", "ada", "ada.", TOKEN[:-1], TOKEN.replace("ada", "eve"), "bob.x"):
        assert tokens.fits(found, wrong) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ada operator\n", "line 1: found 2 words, expected name, role and hash"),
        (
            f"#\n{LINE.replace('operator', 'admin')}",
            "line 2: found role 'admin', expected viewer or operator",
        ),
        (LINE.replace("ada", "Ada"), "line 1: found 'Ada', expected a name"),
        ("ada operator sha256:0011", "line 1: found no such hash, expected one that farmctl"),
        ("ada operator secret", "line 1: found no such hash, expected one that farmctl"),
        (f"{LINE}\n{LINE}", "line 2: found 'ada' again, expected each name once"),
    ],
    ids=["two words", "role", "name", "short hash", "no hash", "twice"],  # the token is another in each run
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CredentialInvalid) as caught:
        tokens.read(written(tmp_path, text))
    assert said in caught.value.message
    assert "secret" not in caught.value.message
    assert LINE.split(":")[1] not in caught.value.message


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(CredentialInvalid, match=f"found mode {mode:04o} of .*expected 0640 or less"):
        tokens.read(written(tmp_path, LINE, mode))


def test_farmctl_makes_a_token_and_adds_its_line(tmp_path: Path) -> None:
    farmctl, path = Farmctl("127.0.0.1:1", "none/", inside=True), tmp_path / "made"
    command = ("token", "create", "ada", "--role", "operator", "--file", str(path))
    made = farmctl(*command)
    assert (made.code, path.stat().st_mode & 0o777) == (0, 0o600)
    found = tokens.read(str(path))
    assert tokens.fits(found, made.out.strip()) == found["ada"]
    again = farmctl(*command)
    assert again.code == 5
    assert "has a token of 'ada' already" in again.err


def test_farmctl_adds_a_line_to_a_file_without_a_newline_at_its_end(tmp_path: Path) -> None:
    path = written(tmp_path, LINE)
    command = ("token", "create", "eve", "--role", "viewer", "--file", path)
    assert Farmctl("127.0.0.1:1", "none/", inside=True)(*command).code == 0
    assert list(tokens.read(path)) == ["ada", "eve"]


def test_a_missing_or_empty_file_has_no_tokens(tmp_path: Path) -> None:
    assert tokens.read(str(tmp_path / "none")) == {}
    assert tokens.read(written(tmp_path, "\n")) == {}
