"""The ACL token that goes into each request's header, and nowhere else: no message, log or repr."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from store.credentials import CredentialFiles, is_token, token
from store.errors import InputInvalid


def token_source(env: Mapping[str, str]) -> Callable[[], str] | None:
    """From ``CONSUL_HTTP_TOKEN_FILE``, which wins as in Consul's own tools, or ``CONSUL_HTTP_TOKEN``.

    Raises:
        InputInvalid: ``CONSUL_HTTP_TOKEN`` holds anything but a token.
    """
    path, given = env.get("CONSUL_HTTP_TOKEN_FILE", ""), env.get("CONSUL_HTTP_TOKEN", "").strip()
    if path:
        return CredentialFiles([path], lambda: token("CONSUL_HTTP_TOKEN_FILE", path))
    if given and not is_token(given.encode(errors="surrogateescape")):
        raise InputInvalid(
            "CONSUL_HTTP_TOKEN: found what no token may hold, expected a token alone on one line",
            field="CONSUL_HTTP_TOKEN",
        )
    return (lambda: given) if given else None
