"""A ``ConsulClient`` from the environment, for processes; tests build one over their own transport."""

from __future__ import annotations

from collections.abc import Mapping

from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.tokens import token_source
from store.consul.transport import AiohttpTransport
from store.ports import Clock, Recorder


def connect(
    env: Mapping[str, str], clock: Clock, recorder: Recorder | None = None, *, address: str | None = None
) -> ConsulClient:
    """Read ``CONSUL_*`` and build a client; call it inside a running loop and close what it returns.

    Nothing is sent yet. ``address`` (a flag) wins over ``CONSUL_HTTP_ADDR``.

    Raises:
        InputInvalid: a variable is unusable, named in one line. What its file holds is looked at when a
            request is sent: ``CredentialInvalid``.
    """
    token = token_source(env)
    transport = AiohttpTransport(Address.from_environment(env, address))
    return ConsulClient(transport, clock=clock, recorder=recorder, token=token)
