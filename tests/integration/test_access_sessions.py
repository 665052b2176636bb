"""Who may end whose session: an agent its own alone, also where all share the servers of Consul."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import AccessDenied
from store.keys import Keys
from tests.farmctl import ROOT
from tests.fleet import client_of
from tests.guarded import NODES, OWNER, Guarded, asked, guarded_consul, registered, world
from tests.processes import Program, eventually, stopped_at_the_end

pytestmark = pytest.mark.xdist_group("access")

KEYS = Keys()


def own_node(node: str) -> str:
    """The node of Consul's catalogue that owns the sessions of one agent."""
    return f"farmd-{node}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The manual's tokens of agents, each for sessions of a node of its own, as for shared servers."""
    folder = tmp_path_factory.mktemp("acl")
    with guarded_consul(folder, key_list_policy=True) as made:
        template = (ROOT / "acl/agent.hcl").read_text()
        for node in NODES:
            body = {"Node": own_node(node), "Address": "127.0.0.1"}
            request = urllib.request.Request(
                f"http://{made.server.address}/v1/catalog/register",
                json.dumps(body).encode(),
                {"X-Consul-Token": OWNER},
                method="PUT",
            )
            urllib.request.urlopen(request, timeout=30).close()
            shard = KEYS.realities(node).split("/")[2]
            rules = template.replace("@NODE@", node).replace("@SHARD@", shard)
            (folder / "rules.hcl").write_text(rules.replace("@CONSUL@", own_node(node)))
            made.shell(f"consul acl policy create -name farmd-own-{node} -rules @rules.hcl")
            made.new_token(f"own-{node}", f"farmd-own-{node}")
        registered(made, *NODES)
        yield made


def opening(guarded: Guarded, role: str, node: str) -> ConsulClient:
    """A client with the token of a role, whose sessions belong to a node."""
    return client_of(guarded.server.address, guarded.token_file(role).read_text().strip(), node)


async def test_a_session_of_a_node_of_its_own_is_its_agents_alone(guarded: Guarded) -> None:
    mine = opening(guarded, "own-node-1", own_node("node-1"))
    other = opening(guarded, "own-node-2", own_node("node-2"))
    farm, elsewhere = guarded.client("farm"), opening(guarded, "own-node-2", own_node("node-1"))
    shared = guarded.client("own-node-2")  # the node of the server that all of them ask
    try:
        session = await mine.create_session(name="test", ttl=600)
        of_farm = await farm.create_session(name="test", ttl=600)
        await mine.renew_session(session)
        for thief, victim in ((other, session), (other, of_farm), (mine, of_farm)):
            with pytest.raises(AccessDenied):
                await thief.destroy_session(victim)
            with pytest.raises(AccessDenied):
                await thief.renew_session(victim)
        for thief in (elsewhere, shared):
            with pytest.raises(AccessDenied):
                await thief.create_session(name="test", ttl=600)
        assert await mine.session_info(session) is not None
        assert await farm.session_info(of_farm) is not None
        await mine.destroy_session(session)
    finally:
        for client in (mine, other, farm, elsewhere, shared):
            await client.close()


def test_an_agent_whose_sessions_moved_to_a_node_of_its_own_joins_and_keeps_its_workloads(
    guarded: Guarded, tmp_path: Path
) -> None:
    """Its former session, which its new token may not renew, ends by its TTL."""

    def presence() -> Entry | None:
        return world(guarded).get(KEYS.agent("node-1"))

    with stopped_at_the_end() as running:

        def start(role: str, node: str) -> Program:
            known = {
                "CONSUL_HTTP_ADDR": guarded.server.address,
                "CONSUL_HTTP_TOKEN_FILE": str(guarded.token_file(role)),
                "FARMD_AGENT__STATE_DIR": str(tmp_path / "node-1"),
                "FARMD_AGENT__NODE": "node-1",
                "FARMD_AGENT__SHARE_USER": "true",
                "FARMD_STORE__SESSION_NODE": node,
            }
            running.append(Program("agent", "--port", "0", folder=tmp_path, **known))
            return running[-1]

        before = start("agent-node-1", "")
        before.wait_for("agent.present")
        before.process.kill()
        first = presence()
        assert first is not None
        start("own-node-1", own_node("node-1")).wait_for("agent.present")

        def is_new() -> bool:
            found = presence()
            return found is not None and found.session not in ("", first.session)

        eventually("a presence by a session of its own", is_new)
        asked(guarded, lambda client: client.delete(KEYS.agent("node-1")))
