"""Give a Consul with ACLs its policies and tokens, once: the one-shot service of ``docker-compose.yml``.

``python bootstrap.py POLICIES TOKENS SERVER…`` reads the policies of this folder and writes one file for each
token below TOKENS: ``admin/management`` and ``admin/operator``, ``farm/farm``, and ``<node>/agent`` for each
name in NODES. What is there already stays, so that it may run again. It uses the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PATIENCE = 120.0


class Consul:
    """One server's HTTP API."""

    def __init__(self, address: str, token: str = "") -> None:
        self.address, self.token = address, token

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request; the decoded answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}/v1/{path}", data, method=method)
        request.add_header("X-Consul-Token", self.token)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"null")

    def policy(self, name: str, rules: str) -> None:
        """Have this policy, whether it was there or not."""
        known = {each["Name"]: each["ID"] for each in self.ask("GET", "acl/policies")}
        path = f"acl/policy/{known[name]}" if name in known else "acl/policy"
        self.ask("PUT", path, {"Name": name, "Rules": rules})

    def node(self, name: str) -> None:
        """Have a node in the catalogue that is no server or agent of Consul's, but owns sessions."""
        self.ask("PUT", "catalog/register", {"Node": name, "Address": "127.0.0.1"})

    def new_token(self, description: str, policy: str) -> str:
        """A token that bears one policy."""
        made = self.ask("PUT", "acl/token", {"Description": description, "Policies": [{"Name": policy}]})
        return str(made["SecretID"])


def bootstrapped(consul: Consul, file: Path) -> str:
    """The management token: of the file, or made now. Waits for a leader."""
    if file.exists():
        return file.read_text()
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return keep(file, str(consul.ask("PUT", "acl/bootstrap")["SecretID"]))
        except (OSError, urllib.error.HTTPError) as error:
            said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error)
            if "no longer allowed" in said:
                raise SystemExit(f"{file} is missing, and Consul was bootstrapped before: {said}") from error
            if time.monotonic() > deadline:
                raise SystemExit(f"Consul cannot be bootstrapped: {said}") from error
            time.sleep(0.5)


def keep(file: Path, token: str) -> str:
    """Write a token's file as a whole, for its user alone."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}")
    part.write_text(token)
    part.chmod(0o600)
    part.rename(file)
    return token


def agent_rules(template: str, node: str) -> str:
    """The policy of one node's agent, whose sessions belong to a node of its own in Consul's catalogue."""
    shard = hashlib.blake2b(node.encode(), digest_size=1).hexdigest()[0]
    rules = template.replace("@NODE@", node).replace("@SHARD@", shard)
    return rules.replace("@CONSUL@", session_node(node))


def session_node(name: str) -> str:
    """The node of Consul's catalogue to which the sessions of an agent belong, or those of all farms.

    All of them ask the same three servers, whose sessions anybody could end who may open one there.
    """
    return f"farmd-{name}"


def main(policies: Path, tokens: Path, *servers: str) -> None:
    """Bring policies, tokens and the servers' own token to what they should be."""
    consul = Consul(servers[0])
    consul.token = bootstrapped(consul, tokens / "admin" / "management")
    wanted = {role: (role, (policies / f"{role}.hcl").read_text()) for role in ("consul", "farm", "operator")}
    farms = wanted["farm"][1].replace('session_prefix ""', f'session "{session_node("farms")}"')
    wanted["farm"] = ("farm", farms)
    consul.node(session_node("farms"))
    template = (policies / "agent.hcl").read_text()
    for node in os.environ.get("NODES", "").split():
        wanted[f"agent-{node}"] = ("agent", agent_rules(template, node))
        consul.node(session_node(node))
    for role, (name, rules) in wanted.items():
        consul.policy(f"farmd-{role}", rules)
        folder = {"consul": "admin", "operator": "admin", "farm": "farm"}.get(
            role, role.removeprefix("agent-")
        )
        file = tokens / folder / name
        if not file.exists():
            keep(file, consul.new_token(role, f"farmd-{role}"))
    for server in servers:
        own = {"Token": (tokens / "admin" / "consul").read_text()}
        Consul(server, consul.token).ask("PUT", "agent/token/agent", own)
    print(f"Consul has the policies and tokens of {', '.join(wanted)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
