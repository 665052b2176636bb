"""Config keys by farmctl: set, shown, edited, compared and deleted."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.farmctl import Farmctl, embedded, in_cluster
from tests.people import hello


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


def editing(farmctl: Farmctl, folder: Path, command: str) -> Farmctl:
    """The same with an editor that runs a command of sed."""
    editor = folder / "editor"
    editor.write_text(f'#!/bin/sh\nsed -i "{command}" "$1"\n')
    editor.chmod(0o755)
    return Farmctl(farmctl.address, farmctl.prefix, inside=True, variables={"EDITOR": str(editor)})


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
    editing(farmctl, tmp_path, "s/canary-2/canary-3/").ok("config", "edit", "shop/db_url")
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


def test_an_export_has_the_commands_that_set_the_keys(farmctl: Farmctl, tmp_path: Path) -> None:
    values = {"a/quoted": "it's\n$HOME\n", "b": "-q"}
    for key, value in values.items():
        farmctl.ok("config", "set", "--", key, value)
    farmctl.ok("export", str(tmp_path / "backup"))
    script = (tmp_path / "backup" / "commands.sh").read_text()
    other = in_cluster(farmctl.address)
    words = shlex.split(script, comments=True)
    for at in (number for number, word in enumerate(words) if word == "farmctl"):
        other.ok(*words[at + 1 : words.index("||", at)])
    rows = other.ok("config", "list", "-o", "name").out.split()
    assert rows == ["config/a/quoted", "config/b"]
    assert other.ok("config", "get", "a/quoted", "-o", "json").json["value"] == values["a/quoted"]


def test_a_number_below_zero_is_a_value_and_a_dry_run_writes_nothing(farmctl: Farmctl) -> None:
    farmctl.ok("config", "set", "level", "-5", "--dry-run")
    assert farmctl("config", "get", "level").code == 4
    farmctl.ok("config", "set", "level", "-5")
    assert farmctl.ok("config", "get", "level").out == "-5\n"


WEB = yaml.safe_dump(hello(pod_env={"DB_URL": {"kv": "shop/db_url"}}))


def test_a_controllers_file_refers_to_a_key_and_each_change_of_it_is_seen(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    missing = farmctl("rc", "create", "-f", "-", stdin=WEB)
    assert (missing.code, missing.err.splitlines()) == (
        2,
        [
            "farmctl: stdin: pod.env.DB_URL: config/shop/db_url does not exist",
            "hint: farmctl config set shop/db_url VALUE",
        ],
    )
    farmctl.ok("config", "set", "shop/db_url", "canary-1")
    first = version(farmctl, "shop/db_url")
    farmctl.ok("rc", "create", "-f", "-", "--no-wait", stdin=WEB)
    assert f"env.DB_URL from config/shop/db_url version {first}" in farmctl.ok("rc", "describe", "hello").out
    file = farmctl.ok("rc", "get", "hello", "--file").out
    assert yaml.safe_load(file)["pod"]["env"] == {"DB_URL": {"kv": "shop/db_url"}}
    assert "nothing to change" in farmctl.ok("rc", "diff", "-f", "-", stdin=file).err

    farmctl.ok("config", "set", "shop/db_url", "canary-2")
    due = farmctl.ok("rc", "diff", "-f", "-", stdin=file)
    assert f"pod.env.DB_URL: from config/shop/db_url version {first} -> " in due.out
    assert "canary" not in due.out
    farmctl.ok("rc", "update", "-f", "-", "--now", "--no-wait", "-y", stdin=file)
    assert "nothing to change" in farmctl.ok("rc", "diff", "-f", "-", stdin=file).err
    edited = editing(farmctl, tmp_path, "s/^replicas: 3/replicas: 4/").ok(
        "rc", "edit", "hello", "--no-wait", "-y"
    )
    assert edited.err == "rc/hello: update: replicas 3 -> 4\n"


def test_apply_and_job_run_resolve_what_their_files_refer_to(farmctl: Farmctl) -> None:
    bundle = yaml.safe_dump({"apiVersion": "farmd/v1", "kind": "rc", **yaml.safe_load(WEB)})
    refused = farmctl("apply", "-f", "-", "--app", "shop", "-y", "--no-wait", stdin=bundle)
    assert "pod.env.DB_URL: config/shop/db_url does not exist" in refused.err
    farmctl.ok("config", "set", "shop/db_url", "canary-1")
    farmctl.ok("apply", "-f", "-", "--app", "shop", "-y", "--no-wait", stdin=bundle)
    assert "kv: shop/db_url" in farmctl.ok("app", "get", "shop").out
    plan = farmctl("diff", "-f", "-", "--app", "shop", "-o", "json", stdin=bundle)
    assert plan.json["settings"]["needs"] == ["config.1"]
    farmctl.ok("config", "set", "shop/db_url", "other")
    farmctl.ok("config", "set", "shop/db_url", "canary-1")
    same = farmctl("diff", "-f", "-", "--app", "shop", stdin=bundle)
    assert same.out.startswith("app/shop: revision 1,")  # an equal value is no new revision
    farmctl.ok("config", "set", "shop/db_url", "canary-2")
    changed = farmctl("diff", "-f", "-", "--app", "shop", stdin=bundle)
    assert changed.out.startswith("app/shop: revision 1 -> 2,")
    pod = {"id": "w", "command": ["true"], "env": {"DB_URL": {"kv": "shop/db_url"}}}
    job = yaml.safe_dump({"name": "bert", "types": [{"name": "w", "replicas": 1, "pod": pod}]})
    farmctl.ok("job", "run", "-f", "-", "--no-wait", stdin=job)
    assert "kv: shop/db_url" in farmctl.ok("job", "get", "bert", "--file").out
