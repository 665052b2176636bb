"""A build's version says which commit it is, also where nobody has set a tag."""

from __future__ import annotations

import subprocess

import pytest

from hatch_build import version

pytestmark = pytest.mark.whole
"""They need git."""


@pytest.fixture
def git(tmp_path, monkeypatch):
    monkeypatch.delenv("FARMD_BUILD_VERSION", raising=False)

    def run(*words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet")
    (tmp_path / "file").write_text("1")
    run("add", "file")
    run("commit", "--quiet", "--message", "one")
    return run


def commit(git) -> str:
    return git("rev-parse", "--short", "HEAD")


def test_a_tagged_commit_has_the_version_of_its_tag(git, tmp_path):
    git("tag", "v1.2.0")
    assert version(tmp_path) == "1.2.0"


def test_a_candidate_has_the_version_of_its_tag(git, tmp_path):
    git("tag", "v1.2.0-rc1")
    assert version(tmp_path) == "1.2.0-rc1"


def test_a_commit_after_a_tag_says_how_far_behind_it_the_tag_is(git, tmp_path):
    git("tag", "v1.2.0")
    git("commit", "--quiet", "--allow-empty", "--message", "two")
    assert version(tmp_path) == f"1.2.0.post1+g{commit(git)}"


def test_without_a_tag_it_is_no_version_and_the_commit(git, tmp_path):
    assert version(tmp_path) == f"0.0.0+g{commit(git)}"


def test_sources_that_are_not_committed_are_said_to_be_so(git, tmp_path):
    git("tag", "v1.2.0")
    (tmp_path / "file").write_text("2")
    assert version(tmp_path) == f"1.2.0+g{commit(git)}.dirty"


def test_a_tag_that_is_no_version_is_not_one(git, tmp_path):
    git("tag", "vendor")
    assert version(tmp_path) == f"0.0.0+g{commit(git)}"


def test_an_sdist_keeps_the_version_that_it_was_made_with(git, tmp_path):
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: farmd\nVersion: 1.1.0\n\nVersion: 9\n")
    assert version(tmp_path) == "1.1.0"


def test_a_checkout_whose_git_fails_says_why(git, tmp_path):
    (tmp_path / ".git/HEAD").unlink()
    with pytest.raises(ValueError, match=r"git describe failed.*FARMD_BUILD_VERSION.*not a git repository"):
        version(tmp_path)


def test_a_checkout_on_a_machine_without_git_has_no_version(git, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert version(tmp_path) == "0.0.0"


def test_without_git_it_is_what_the_builder_states_or_none(tmp_path, monkeypatch):
    monkeypatch.delenv("FARMD_BUILD_VERSION", raising=False)
    assert version(tmp_path) == "0.0.0"
    monkeypatch.setenv("FARMD_BUILD_VERSION", "1.3.0")
    assert version(tmp_path) == "1.3.0"
