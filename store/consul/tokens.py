"""The ACL token for the header of each request; it must never be in a message, log or repr."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from store.credentials import CredentialFiles, is_token, token
from store.errors import refuse


def token_source(env: Mapping[str, str]) -> Callable[[], str] | None:
    """The token of ``CONSUL_HTTP_TOKEN_FILE``, which is preferred as in Consul's own tools, or of
    ``CONSUL_HTTP_TOKEN``.

    Raises:
        InputInvalid: ``CONSUL_HTTP_TOKEN`` is no token.
    """
    path, given = env.get("CONSUL_HTTP_TOKEN_FILE", ""), env.get("CONSUL_HTTP_TOKEN", "").strip()
    if path:
        return CredentialFiles([path], lambda: token("CONSUL_HTTP_TOKEN_FILE", path))
    if given and not is_token(given.encode(errors="surrogateescape")):
        refuse("CONSUL_HTTP_TOKEN", "characters that no token may have", "one token on one line")
    return (lambda: given) if given else None
