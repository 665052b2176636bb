"""Imports aiohttp without the machine's certificate authorities, which are loaded when they are first needed.

By itself aiohttp loads all of them twice while it is imported. That is a fifth of its import and a tenth of
the start of a farm, and most processes never use them. A context must never connect without them: they are
loaded before its first handshake. This module must be imported before any other that imports aiohttp.
"""

from __future__ import annotations

import ssl
from typing import Any


class _Later(ssl.SSLContext):
    """A context that becomes a usual one, with the machine's authorities, at its first handshake."""

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return _loaded(self).wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        return _loaded(self).wrap_socket(*args, **kwargs)


def _loaded(context: ssl.SSLContext) -> ssl.SSLContext:
    context.__class__ = ssl.SSLContext
    context.set_default_verify_paths()
    return context


def _delay(context: ssl.SSLContext) -> None:
    context.__class__ = _Later


_usual = ssl.SSLContext.set_default_verify_paths
ssl.SSLContext.set_default_verify_paths = _delay  # type: ignore[assignment, method-assign]
try:
    import aiohttp
finally:
    ssl.SSLContext.set_default_verify_paths = _usual  # type: ignore[method-assign]

__all__ = ["aiohttp"]
