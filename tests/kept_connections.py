"""Connections to an HTTPS server that stay open from one look to the next.

A handshake costs a test and its server seven times what a small answer does, and tests look often.
"""

from __future__ import annotations

import io
import ssl
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPSConnection
from urllib.error import HTTPError
from urllib.parse import urlsplit


class KeptConnections:
    """Threads may share them. ``login`` is called for each new connection."""

    def __init__(self, url: str, login: Callable[[], ssl.SSLContext], seconds: float = 30.0) -> None:
        self._url = url
        self._login = login
        self._seconds = seconds
        self._idle: list[HTTPSConnection] = []

    def get(self, path: str, headers: Mapping[str, str]) -> bytes:
        """The body of an answer.

        Raises:
            HTTPError: the server refused.
            OSError, HTTPException: there was no answer.
        """
        where = urlsplit(self._url + path)
        target = f"{where.path}?{where.query}" if where.query else where.path
        while True:
            try:
                connection, fresh = self._idle.pop(), False
            except IndexError:
                connection, fresh = self._new(where.hostname or "", where.port), True
            try:
                connection.request("GET", target, headers=dict(headers))
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, HTTPException) as error:
                connection.close()
                if fresh or isinstance(error, TimeoutError):
                    raise
                continue  # the server closed it since the last look
            self._idle.append(connection)
            if answer.status >= 400:
                raise HTTPError(
                    self._url + path, answer.status, answer.reason, answer.headers, io.BytesIO(text)
                )
            return text

    def close(self) -> None:
        """Close those that nobody uses now."""
        while self._idle:
            self._idle.pop().close()

    def _new(self, host: str, port: int | None) -> HTTPSConnection:
        return HTTPSConnection(host, port, context=self._login(), timeout=self._seconds)
