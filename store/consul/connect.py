"""Builds a process's ``ConsulClient`` from the environment; tests use transports of their own."""

from __future__ import annotations

from collections.abc import Mapping

from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.tokens import token_source
from store.consul.transport import AiohttpTransport
from store.ports import Clock, Recorder


def connect(
    env: Mapping[str, str],
    clock: Clock,
    recorder: Recorder | None = None,
    *,
    address: str | None = None,
    session_node: str = "",
) -> ConsulClient:
    """Read ``CONSUL_*`` and build a client; call it inside a running loop and close the client.

    Nothing is sent yet. ``address`` (a flag) overrides ``CONSUL_HTTP_ADDR``.

    Raises:
        InputInvalid: a variable is unusable; the message names it. The files that variables name are read
            when a request is sent, which then raises ``CredentialInvalid``.
    """
    token = token_source(env)
    transport = AiohttpTransport(Address.from_environment(env, address))
    return ConsulClient(transport, clock=clock, recorder=recorder, token=token, session_node=session_node)
