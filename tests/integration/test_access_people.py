"""farmctl with the tokens of people: a reader changes nothing, an operator nothing that agents and farms say.

Each denial is one line that names what was denied, exit code 6, and a store that is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.failsafe import Failsafe
from store.keys import Keys
from store.pods import Pod
from store.reality import Intent, Reality
from tests.farmctl import Result
from tests.guarded import NODES, Guarded, asked, guarded_consul, put, registered, world

pytestmark = pytest.mark.xdist_group("access")

KEYS = Keys()
HELLO = (
    "{name: hello, replicas: 2, min_healthy_time: 0,"
    " pod: {id: hello, command: [sleep, '1000'], stop: {grace: 1}}}"
)
STALE = Reality(manifest="0" * 64)


@pytest.fixture(scope="module")
def consul(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_consul(tmp_path_factory.mktemp("acl"), key_list_policy=True) as made:
        yield made


@pytest.fixture
def guarded(consul: Guarded) -> Guarded:
    """A cluster with nodes at which nobody works, and nothing of the test before."""
    consul.shell("consul kv delete -recurse ''")
    registered(consul, *NODES)
    return consul


def denied(result: Result, key: str) -> None:
    """One line that names what was denied, one that says what to look at, and the exit code."""
    assert result.code == 6, result
    told, hint = result.err.splitlines()[-2:]
    assert told.startswith("farmctl: ")
    assert " 403 Permission denied" in told or " 409 Permission denied (" in told
    assert f"{KEYS.prefix}{key}" in told
    assert hint.startswith("hint: the token may not do this")
    assert result.err.count("farmctl: ") == 1


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("rc create -f -", "manifests/"),
        ("rc set-replicas hello 9", "rcs/"),
        ("rc delete hello -y", "rcs/"),
        ("rc disable hello", "rcs/"),
        ("service create shop --port http", "services/"),
        ("node cordon node-1", "nodes/node-1"),
        ("node label node-1 a=b", "nodes/node-1"),
        ("node drain node-1 --deadline 1h", "nodes/node-1"),
        ("volume create data --node node-1", "nodes/node-1"),
        ("node register node-3", "intent/node-3/.present"),
        ("failsafe clear rcs --evidence lost --for 1m --reason x -y", "failsafe/rcs"),
        ("doctor --fix stale-reality -y", "reality/"),
    ],
)
def test_a_reader_changes_nothing(guarded: Guarded, line: str, key: str) -> None:
    guarded.farmctl("operator").ok(
        "rc", "create", "-f", "-", stdin=HELLO.replace("replicas: 2", "replicas: 0")
    )
    put(guarded, KEYS.failsafe("rcs"), Failsafe(evidence="lost", since=1.0, by="f1"))
    put(guarded, KEYS.reality("node-9", "x"), STALE)
    before = world(guarded)
    denied(guarded.farmctl("reader")(*line.split(), stdin=HELLO.replace("hello", "other")), key)
    assert world(guarded) == before


@pytest.mark.parametrize("line", ["rc list", "rc create -f -", "node cordon node-1", "doctor"])
def test_a_token_that_consul_does_not_know_is_called_unknown(
    guarded: Guarded, tmp_path: Path, line: str
) -> None:
    token = tmp_path / "token"
    token.write_text("3b67ff1f-0000-0000-0000-000000000000")
    result = guarded.farmctl("reader")(*line.split(), "--token-file", str(token), stdin=HELLO)
    assert (result.code, result.out) == (6, "")
    told, hint = result.err.splitlines()
    assert told.startswith("farmctl: unknown token: ")
    assert told.endswith("403 ACL not found")
    assert hint == (
        "hint: the token belongs to another cluster, or was deleted or has expired:"
        " check CONSUL_HTTP_TOKEN_FILE or --token-file"
    )


def test_an_operator_takes_away_what_belongs_to_nobody_but_not_what_an_agent_reported(
    guarded: Guarded,
) -> None:
    pod, intent, reality = (
        KEYS.pod("0a", "node-1", "x"),
        KEYS.intent("node-1", "x"),
        KEYS.reality("node-9", "x"),
    )
    for key, record in ((pod, Pod("0" * 64)), (intent, Intent("0" * 64, "0a")), (reality, STALE)):
        put(guarded, key, record)
    operator = guarded.farmctl("operator")
    operator.ok("doctor", "--fix", "orphan-pod", "-y")
    before = world(guarded)
    assert {pod, intent} & set(before) == set()
    denied(operator("doctor", "--fix", "stale-reality", "-y"), "reality/")
    assert world(guarded) == before
    guarded.farmctl("repair").ok("doctor", "--fix", "stale-reality", "-y")
    assert reality not in world(guarded)


def test_to_forget_a_node_takes_the_right_to_repair(guarded: Guarded) -> None:
    operator = guarded.farmctl("operator")
    operator.ok("node", "register", "node-9")
    operator.ok("node", "cordon", "node-9")
    put(guarded, KEYS.reality("node-9", "x"), STALE)
    before = world(guarded)
    denied(operator("node", "forget", "node-9", "-y"), "reality/")
    assert world(guarded) == before
    guarded.farmctl("repair").ok("node", "forget", "node-9", "-y")
    assert [key for key in world(guarded) if "node-9" in key.split("/")] == []


def test_an_operator_notes_and_forgets_volumes(guarded: Guarded) -> None:
    operator = guarded.farmctl("operator")
    operator.ok("volume", "create", "data", "--node", "node-1")
    operator.ok("volume", "delete", "data", "-y")
    assert KEYS.name("volumes", "data") not in world(guarded)


def test_r13_an_operator_breaks_a_mutation_lock_with_a_reason(guarded: Guarded) -> None:
    operator = guarded.farmctl("operator")
    operator.ok("rc", "create", "-f", "-", stdin=HELLO)
    (item,) = operator.ok("rc", "list", "-o", "json").json["items"]
    lock = KEYS.mutation_lock("rcs", item["id"])
    asked(guarded, lambda client: client.put(lock, b"user/ada@host/n@1"))
    assert operator("rc", "set-replicas", "hello", "3").code == 5
    operator.ok("rc", "set-replicas", "hello", "3", "--force", "--reason", "ada left", "-y")
    assert lock not in world(guarded)
