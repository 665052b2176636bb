"""Policies and tokens of Consul's ACLs, for the commands that make them; farms and agents make none.

The secret of a token is in one answer alone, and must never be in a message or a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from store.consul import answers
from store.consul.exchange import SHORT_SECONDS, Exchange, Op
from store.errors import AccessDenied, Conflict
from store.ports import Lane, Request

T = TypeVar("T")


class Policy(msgspec.Struct, rename="pascal", frozen=True):
    """One policy; a list of policies leaves their rules out."""

    name: str
    id: str = msgspec.field(name="ID")
    rules: str = ""


class Token(msgspec.Struct, rename="pascal", frozen=True):
    """One token; only the answer to its creation is sure to have the secret."""

    accessor: str = msgspec.field(name="AccessorID")
    secret: str = msgspec.field(name="SecretID", default="")
    description: str = ""

    def __repr__(self) -> str:
        return f"Token({self.accessor})"


class _Node(msgspec.Struct, rename="pascal"):
    node: str
    address: str


_POLICY = msgspec.json.Decoder(Policy)
_POLICIES = msgspec.json.Decoder(list[Policy])
_TOKEN = msgspec.json.Decoder(Token)
_TOKENS = msgspec.json.Decoder(list[Token])
_NODES = msgspec.json.Decoder(list[_Node])


class Acl:
    """The endpoints below ``/v1/acl``, by the client's own token; ``Conflict`` where ACLs are off."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def policy(self, name: str) -> Policy | None:
        """A policy with its rules; None: there is none of that name."""
        found = await self._read("acl/policies", _POLICIES)
        ident = next((each.id for each in found if each.name == name), None)
        if ident is None:
            return None
        return await self._read(f"acl/policy/{ident}", _POLICY)

    async def put_policy(self, name: str, rules: str, known: Policy | None) -> Policy:
        """Create a policy, or change the ``known`` one to these rules."""
        path = f"acl/policy/{known.id}" if known else "acl/policy"
        return await self._write(path, {"Name": name, "Rules": rules}, _POLICY)

    async def tokens(self, policy: Policy) -> list[Token]:
        """The tokens that bear a policy."""
        return await self._read("acl/tokens", _TOKENS, (("policy", policy.id),))

    async def create_token(self, description: str, policies: Sequence[str]) -> Token:
        """A new token that bears these policies, with its secret."""
        names = [{"Name": name} for name in policies]
        return await self._write("acl/token", {"Description": description, "Policies": names}, _TOKEN)

    async def nodes(self) -> dict[str, str]:
        """The addresses of all nodes in Consul's catalogue that the token may see, by their names."""
        return {each.node: each.address for each in await self._read("catalog/nodes", _NODES)}

    async def _read(
        self, path: str, decoder: msgspec.json.Decoder[T], params: tuple[tuple[str, str], ...] = ()
    ) -> T:
        try:
            response = await self._exchange(Op.ACL, Request("GET", f"/v1/{path}", params), SHORT_SECONDS)
        except AccessDenied as error:
            if "acl support disabled" in error.message.lower():
                hint = "farms and agents need no token then; docs/first-hosts.md turns ACLs on"
                raise Conflict("Consul's ACLs are off, so it has no tokens", hint=hint) from error
            raise
        return answers.decode(decoder, Op.ACL, response)

    async def _write(self, path: str, body: object, decoder: msgspec.json.Decoder[T]) -> T:
        request = Request("PUT", f"/v1/{path}", (), msgspec.json.encode(body), lane=Lane.WRITE)
        response = await self._exchange(Op.ACL_WRITE, request, SHORT_SECONDS)
        return answers.decode(decoder, Op.ACL_WRITE, response)
