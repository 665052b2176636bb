"""Config keys by farmctl: set, shown, edited, compared and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.farmctl import Farmctl, embedded, in_cluster


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with embedded() as address:
        yield address


@pytest.fixture
def farmctl(server: str) -> Farmctl:
    return in_cluster(server)


def version(farmctl: Farmctl, key: str) -> int:
    found: int = farmctl.ok("config", "get", key, "-o", "json").json["version"]
    return found


def test_a_config_key_is_set_shown_compared_edited_and_deleted(farmctl: Farmctl, tmp_path: Path) -> None:
    assert "no config keys" in farmctl.ok("config", "list").err
    done = farmctl.ok("config", "set", "shop/db_url", "postgres://canary-1", "--reason", "first")
    assert (done.out, "canary" in done.err) == ("config/shop/db_url set\n", False)
    first = version(farmctl, "shop/db_url")
    assert farmctl.ok("config", "get", "config/shop/db_url").out == "postgres://canary-1\n"
    assert "unchanged" in farmctl.ok("config", "set", "shop/db_url", "postgres://canary-1").out
    farmctl.ok("config", "set", "shop/db_url", "--file", "-", stdin="postgres://canary-2\n")
    assert farmctl.ok("config", "get", "shop/db_url", "--version", str(first)).out == "postgres://canary-1\n"

    rows = farmctl.ok("config", "history", "shop/db_url", "-o", "json").json["items"]
    assert [(row["state"], row["bytes"], row["reason"]) for row in rows] == [
        ("current", 20, ""),
        ("old", 19, "first"),
    ]
    assert farmctl.ok("config", "diff", "shop/db_url").out.splitlines()[3:] == [
        "-postgres://canary-1",
        "+postgres://canary-2",
    ]
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/canary-2/canary-3/ "$1"\n')
    editor.chmod(0o755)
    edits = Farmctl(farmctl.address, farmctl.prefix, inside=True, variables={"EDITOR": str(editor)})
    edits.ok("config", "edit", "shop/db_url")
    assert farmctl.ok("config", "get", "shop/db_url").out == "postgres://canary-3\n"

    (row,) = farmctl.ok("config", "list", "shop/", "-o", "json").json["items"]
    assert (row["key"], row["bytes"]) == ("shop/db_url", 20)
    assert farmctl.ok("config", "list", "-o", "name").out == "config/shop/db_url\n"
    audit = farmctl.ok("audit", "list", "--item", "config/shop/db_url", "-o", "json")
    assert [each["action"] for each in audit.json["items"]] == ["config.set"] * 3
    assert "canary" not in audit.out
    assert farmctl("config", "delete", "shop/db_url").code == 2
    farmctl.ok("config", "delete", "shop/db_url", "-y")
    gone = farmctl("config", "get", "shop/db_url")
    assert (gone.code, gone.err) == (
        4,
        "farmctl: config/shop/db_url does not exist\nhint: set it: farmctl config set shop/db_url VALUE\n",
    )
    assert farmctl.ok("config", "get", "shop/db_url", "--version", str(first)).out == "postgres://canary-1\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set", "a"), "value: found nothing, expected VALUE or --file FILE"),
        (
            ("set", "a", "b", "--file", "-"),
            "value: found both VALUE and --file, expected VALUE or --file FILE",
        ),
        (("set", "a b", "c"), "key: found 'a b', expected names"),
        (("set", "a", "x" * 65537), "value: found 65537 bytes, expected at most 65536"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    farmctl: Farmctl, words: tuple[str, ...], told: str
) -> None:
    refused = farmctl("config", *words)
    assert refused.code == 2
    assert told in refused.err
    assert farmctl.ok("config", "list", "-o", "json").json["items"] == []


def test_a_number_below_zero_is_a_value_and_a_dry_run_writes_nothing(farmctl: Farmctl) -> None:
    farmctl.ok("config", "set", "level", "-5", "--dry-run")
    assert farmctl("config", "get", "level").code == 4
    farmctl.ok("config", "set", "level", "-5")
    assert farmctl.ok("config", "get", "level").out == "-5\n"
