"""The tokens that farmctl makes in Consul: what they may, what is told of them, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from store.keys import Keys
from tests.farmctl import Farmctl
from tests.guarded import NODES, OWNER, Guarded, guarded_consul, registered

pytestmark = pytest.mark.xdist_group("access")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_consul(tmp_path_factory.mktemp("acl"), key_list_policy=True) as made:
        registered(made, *NODES)
        yield made


@pytest.fixture
def owner(guarded: Guarded) -> Farmctl:
    return Farmctl(guarded.server.address, inside=True, variables={"CONSUL_HTTP_TOKEN": OWNER})


def test_a_nodes_token_is_alone_on_stdout_and_reads_its_own_intents_alone(
    guarded: Guarded, owner: Farmctl
) -> None:
    made = owner.ok("node", "token", "node-7", "--consul-node", NODES[0])
    assert made.err.splitlines() == [
        "policy farmd-agent-node-7: created",
        "this token is not shown again; use it on node-7, as root:"
        " farmd init node --name node-7 --address 127.0.0.1 --token-file -",
    ]
    asks = replace(owner, variables={"CONSUL_HTTP_TOKEN": made.out.strip()})
    (guarded.folder / "agent-node-7.token").write_text(made.out)
    keys = Keys()
    may = "consul kv get -keys -token-file agent-node-7.token {}"
    guarded.shell(may.format(keys.intents("node-7")))
    with pytest.raises(AssertionError, match="403"):
        guarded.shell(may.format(keys.intents("node-1")))
    refused = asks("node", "token", "node-8")
    assert (refused.code, refused.out) == (6, "")
    assert refused.err.startswith("farmctl: acl: 403 Permission denied")


def test_a_second_token_of_a_node_names_the_first(owner: Farmctl) -> None:
    first = owner.ok("node", "token", "node-5", "--consul-node", NODES[0], "-o", "json").json
    again = owner.ok("node", "token", "node-5", "--consul-node", NODES[0])
    assert f"consul acl token delete -id {first['accessor']}" in again.err
    assert "policy farmd-agent-node-5: as it should be" in again.err
    assert first["secret"] != again.out.strip()


def test_a_node_of_which_consul_knows_nothing_is_refused(owner: Farmctl) -> None:
    refused = owner("node", "token", "node-6")
    assert refused.code == 2
    assert refused.err.startswith(
        "farmctl: --consul-node: found 'node-6', expected a name of `consul catalog nodes`: node-1"
    )


def test_a_policy_that_a_person_changed_stays_until_it_is_replaced(guarded: Guarded, owner: Farmctl) -> None:
    narrow = 'key_prefix "farmd/" { policy = "read" }'
    guarded.shell(f"consul acl policy update -name farmd-reader -rules '{narrow}'")
    kept = owner.ok("token", "consul", "reader")
    assert "policy farmd-reader: kept, although its rules differ from this version's" in kept.err
    assert narrow in guarded.shell("consul acl policy read -name farmd-reader")
    done = owner.ok("token", "consul", "reader", "--policy-only")
    assert (done.out, done.err) == ("", "policy farmd-reader: replaced\n")
    assert "farmd/access/logs/" in guarded.shell("consul acl policy read -name farmd-reader")


def test_a_dry_run_shows_the_policy_and_another_prefix_has_its_own(owner: Farmctl) -> None:
    shown = replace(owner, prefix="a/b/").ok("token", "consul", "repair", "--dry-run").out
    assert shown.startswith("# policy a-b-operator\n")
    assert "# policy a-b-repair\n" in shown
    assert 'key_prefix "a/b/reality/" { policy = "write" }' in shown
    assert '"farmd/' not in shown


@pytest.mark.parametrize("server", ["consul_dev", "address"])
def test_without_access_control_there_is_nothing_to_make(server: str, request: pytest.FixtureRequest) -> None:
    refused = Farmctl(request.getfixturevalue(server), inside=True)("token", "consul", "farm")
    assert refused.code == 5
    assert refused.err.splitlines()[0] == "farmctl: Consul's ACLs are off, so it has no tokens"
