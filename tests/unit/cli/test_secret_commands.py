"""Secrets by farmctl: sealed on the person's machine, referred to, rotated, sealed again and deleted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from store import secrets
from tests.age import decrypted
from tests.binaries import binary
from tests.farmctl import Farmctl, embedded, in_cluster
from tests.people import hello

CANARY = "canarysecret4x7q9z"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with embedded() as address:
        yield address


@pytest.fixture
def farmctl(server: str) -> Farmctl:
    return in_cluster(server)


def keygen(farmctl: Farmctl, path: Path) -> str:
    return farmctl.ok("secret", "keygen", "-o", str(path)).out.strip()


def grouped(farmctl: Farmctl, folder: Path, name: str = "prod") -> str:
    """A group with one recipient, whose identity is in a file of the group's name."""
    recipient = keygen(farmctl, folder / name)
    farmctl.ok("secret", "group", "create", name, "--recipient", recipient)
    return recipient


def rows(farmctl: Farmctl, *words: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = farmctl.ok("secret", *words, "-o", "json").json["items"]
    return found


def test_a_secret_is_set_listed_rotated_and_deleted_and_age_itself_opens_it(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    assert "no secrets" in farmctl.ok("secret", "list").err
    grouped(farmctl, tmp_path)
    assert oct((tmp_path / "prod").stat().st_mode)[-3:] == "600"
    set_ = farmctl.ok("secret", "set", "shop/db", "-", "--group", "prod", "--reason", "new", stdin=CANARY)
    assert "secret/shop/db: set" in set_.err
    assert decrypted(farmctl.ok("secret", "get", "shop/db").out, tmp_path / "prod") == CANARY.encode()

    farmctl.ok("secret", "rotate", "shop/db")
    random = decrypted(farmctl.ok("secret", "get", "shop/db").out, tmp_path / "prod")
    assert len(random) == 43
    first = farmctl.ok("secret", "get", "shop/db", "--version", "1").out
    assert decrypted(first, tmp_path / "prod") == CANARY.encode()
    told = rows(farmctl, "history", "shop/db")
    assert [(row["version"], row["state"], row["reason"]) for row in told] == [
        (2, "current", ""),
        (1, "old", "new"),
    ]
    assert rows(farmctl, "list", "shop/")[0]["group"] == "prod"
    farmctl.ok("secret", "delete", "shop/db", "-y")
    assert farmctl("secret", "get", "shop/db").code == 4
    assert [row["state"] for row in rows(farmctl, "history", "shop/db")] == ["deleted"]
    farmctl.ok("secret", "set", "shop/db", "-", "--group", "prod", stdin="later")
    assert rows(farmctl, "list")[0]["version"] == 4  # no version ever means another value


def test_the_identity_that_age_keygen_made_opens_what_farmctl_sealed(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    subprocess.run([str(binary("age-keygen")), "-o", str(key)], check=True, capture_output=True)
    command = [str(binary("age-keygen")), "-y", str(key)]
    recipient = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    farmctl.ok("secret", "group", "create", "prod", "--recipient", recipient)
    (tmp_path / "value").write_bytes(bytes(range(256)) * 256)
    farmctl.ok("secret", "set", "big", "--from-file", str(tmp_path / "value"), "--group", "prod")
    assert decrypted(farmctl.ok("secret", "get", "big").out, key) == (tmp_path / "value").read_bytes()


def test_reseal_opens_a_secret_to_a_new_recipient_and_no_longer_to_a_removed_one(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    old = grouped(farmctl, tmp_path)
    for value in ("one", "two"):
        farmctl.ok("secret", "set", "shop/db", "-", "--group", "prod", stdin=value)
    new = keygen(farmctl, tmp_path / "new")
    farmctl.ok("secret", "group", "change", "prod", "--add", new, "--remove", old)
    assert rows(farmctl, "list")[0]["stale"] == 1
    unable = farmctl.ok("secret", "reseal", "shop/db", "--identity", str(tmp_path / "new"))
    assert "secrets/shop/db@1: not resealed: no identity given opens it" in unable.err
    farmctl.ok("secret", "reseal", "shop/db", "--identity", str(tmp_path / "prod"))
    assert [row["stale"] for row in rows(farmctl, "history", "shop/db")] == [0, 0]
    for version, value in ((1, b"one"), (2, b"two")):
        text = farmctl.ok("secret", "get", "shop/db", "--version", str(version)).out
        assert decrypted(text, tmp_path / "new") == value
        with pytest.raises(subprocess.CalledProcessError):
            decrypted(text, tmp_path / "prod")
    again = farmctl.ok("secret", "reseal", "shop/db", "--identity", str(tmp_path / "new"))
    assert "nothing to do" in again.err
    (group,) = rows(farmctl, "group", "list")
    assert group["recipients"] == [new]
    farmctl.ok("secret", "group", "delete", "prod", "-y")
    assert rows(farmctl, "group", "list") == []


@pytest.mark.parametrize(
    ("words", "value", "told"),
    [
        (("set", "shop/db", "-", "--group", "prod"), "", "value: found nothing, expected 1 to 65536 bytes"),
        (("set", "shop/db", "-", "--group", "prod"), "x" * 2**20, "expected 1 to 65536 bytes"),
        (("set", "shop/db", "-"), "x", "group: found nothing, expected --group GROUP"),
        (("set", "shop/db", "-", "--group", "other"), "x", "secret group other does not exist"),
        (("set", "shop@1", "-", "--group", "prod"), "x", "expected names of letters"),
        (("set", "shop/db", "--group", "prod"), "x", "value: found nothing, expected --from-file FILE, or -"),
        (("rotate", "shop/db"), "", "secrets/shop/db does not exist"),
        (("group", "create", "x", "--recipient", "age1short"), "", "expected an X25519 recipient of age"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    farmctl: Farmctl, tmp_path: Path, words: tuple[str, ...], value: str, told: str
) -> None:
    grouped(farmctl, tmp_path)
    refused = farmctl("secret", *words, stdin=value)
    assert refused.code
    assert told in refused.err.splitlines()[0]
    assert rows(farmctl, "list") == []


def test_an_identity_in_place_of_a_recipient_is_not_repeated(farmctl: Farmctl, tmp_path: Path) -> None:
    keygen(farmctl, tmp_path / "key")
    secret = (tmp_path / "key").read_text().splitlines()[-1]
    grouped(farmctl, tmp_path)
    for words in (("create", "other", "--recipient"), ("change", "prod", "--remove")):
        refused = farmctl("secret", "group", *words, f" {secret}")
        assert "found an identity, which is secret" in refused.err
        assert secret not in refused.err + refused.out


@pytest.mark.parametrize("words", [(CANARY,), ("-", CANARY)])
def test_a_value_on_the_command_line_is_refused_and_not_repeated(
    farmctl: Farmctl, words: tuple[str, ...]
) -> None:
    refused = farmctl("secret", "set", "shop/db", *words, "--group", "prod", stdin="x")
    assert refused.code == 2
    assert refused.err.startswith("farmctl: value: found one on the command line")
    assert CANARY not in refused.err + refused.out


WEB = yaml.safe_dump(
    hello(pod_env={"PASSWORD": {"secret": "shop/db"}, "MODE": "x"}, pod_secrets=[{"secret": "shop/db"}])
)


def test_a_controllers_file_refers_to_a_secret_and_nothing_shows_its_value(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    grouped(farmctl, tmp_path)
    missing = farmctl("rc", "create", "-f", "-", stdin=WEB)
    assert missing.err.splitlines() == [
        "farmctl: stdin: pod.env.PASSWORD: secrets/shop/db does not exist",
        "hint: farmctl secret set shop/db --from-file FILE --group GROUP",
    ]
    farmctl.ok("secret", "set", "shop/db", "-", "--group", "prod", stdin=CANARY)
    farmctl.ok("rc", "create", "-f", "-", "--no-wait", stdin=WEB)
    record = farmctl.ok("rc", "get", "hello", "-o", "json")
    assert "secrets.1" in record.json["needs"]
    file = farmctl.ok("rc", "get", "hello", "--file").out
    assert yaml.safe_load(file)["pod"]["env"] == {"PASSWORD": {"secret": "shop/db"}, "MODE": "x"}
    assert yaml.safe_load(file)["pod"]["secrets"] == [{"secret": "shop/db"}]
    assert "nothing to change" in farmctl.ok("rc", "diff", "-f", "-", stdin=file).err

    farmctl.ok("secret", "set", "shop/db", "-", stdin=f"{CANARY}2")
    due = farmctl.ok("rc", "diff", "-f", "-", stdin=file)
    assert "pod.env.PASSWORD: secret shop/db@1 -> shop/db@2" in due.out
    assert secrets.MAGIC.decode().strip() not in due.out
    assert len(due.out) < 1000  # no ciphertext either
    pinned = WEB.replace("shop/db", "shop/db@1")
    assert farmctl.ok("rc", "diff", "-f", "-", stdin=pinned).out.strip().endswith("shop/db@1: pinned")
    absent = farmctl("rc", "update", "-f", "-", "--now", "-y", stdin=WEB.replace("shop/db", "shop/db@9"))
    assert "pod.env.PASSWORD: secrets/shop/db has no version 9" in absent.err
    new = keygen(farmctl, tmp_path / "new")
    prod = rows(farmctl, "group", "list")[0]["recipients"][0]  # type: ignore[index]
    farmctl.ok("secret", "group", "change", "prod", "--add", new, "--remove", prod)
    view = farmctl.ok("secret", "describe", "shop/db", "-o", "json").json
    assert (view["version"], view["stale"]) == (2, [prod])
    assert view["users"] == [{"object": "rc/hello", "version": 1, "stale": 1}]
    told = farmctl.ok("secret", "describe", "shop/db").out
    assert f"Recipient:     {prod} (removed)" in told
    assert "secret.set" in told
    findings = farmctl("doctor", "-o", "json").json["items"]
    stale = {each["object"]: each for each in findings if each["code"] == "secret-stale"}
    unopened = [each["explanation"] for each in findings if each["code"] == "secret-unopened"]
    assert unopened == ["no agent that is present has an identity of group prod, to open shop/db@1"]
    assert "version 1, 2 can be opened by" in stale["secrets/shop/db"]["explanation"]
    assert "removed from group prod" in stale[f"rcs/{record.json['id']}"]["explanation"]
    described = farmctl.ok("rc", "describe", "hello").out
    assert "shop/db@1 of group prod: PASSWORD, db" in described
    farmctl.ok("secret", "reseal", "shop/db", "--identity", str(tmp_path / "prod"))
    again = farmctl.ok("rc", "diff", "-f", "-", stdin=pinned)
    assert "pod.sealed.shop/db@1: sealed again, 1 -> 1 recipients of group prod" in again.out
    exported = tmp_path / "export"
    farmctl.ok("export", str(exported))
    assert CANARY not in "".join(each.read_text() for each in exported.iterdir())
    other = in_cluster(farmctl.address)
    other.ok("import", str(exported), "-y")
    assert "shop/db@1 of group prod: PASSWORD, db" in other.ok("rc", "describe", "hello").out
    for words in (("rc", "get", "hello", "-o", "json"), ("audit", "list", "-o", "json"), ("rc", "list")):
        assert CANARY not in farmctl.ok(*words).out


def test_a_schedules_job_refers_to_a_secret_and_its_changes_show_no_ciphertext(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    grouped(farmctl, tmp_path)
    pod = {"id": "w", "command": ["true"], "env": {"PASSWORD": {"secret": "shop/db"}}}
    job = {"types": [{"name": "w", "replicas": 1, "pod": pod}]}
    file = yaml.safe_dump({"name": "nightly", "cron": "@daily", "job": job})
    farmctl.ok("secret", "set", "shop/db", "-", "--group", "prod", stdin="x" * 20_000)
    farmctl.ok("schedule", "create", "-f", "-", stdin=file)
    farmctl.ok("secret", "set", "shop/db", "-", stdin="y" * 20_000)
    due = farmctl.ok("schedule", "diff", "-f", "-", stdin=file).out
    assert '"PASSWORD":"shop/db@1"' in due
    assert '"PASSWORD":"shop/db@2"' in due
    assert len(due) < 1000
    farmctl.ok("schedule", "update", "-f", "-", "-y", stdin=file)
    assert len(farmctl.ok("audit", "list", "-o", "json").out) < 10_000
    assert farmctl.ok("secret", "describe", "shop/db", "-o", "json").json["users"] == [
        {"object": "schedule/nightly", "version": 2, "stale": 0}
    ]
