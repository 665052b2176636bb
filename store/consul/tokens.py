"""The ACL token that goes into each request's header, and nowhere else.

A token file is read again when it changes, so that tokens rotate without a restart. The token itself
must never reach a message, a log or a repr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from store.errors import InputInvalid

log = structlog.get_logger()


class TokenFile:
    """Callable: the token of a file. While the file is away, as during a rename, the last one stays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: tuple[int, int, int] | None = None
        self._token = ""
        self._readable = True
        try:
            self._refresh()
        except OSError as error:
            raise InputInvalid(
                f"CONSUL_HTTP_TOKEN_FILE: found {str(path)!r} ({error.strerror}), expected a readable file",
                field="CONSUL_HTTP_TOKEN_FILE",
            ) from error
        if not self._token:
            raise InputInvalid(
                f"CONSUL_HTTP_TOKEN_FILE: found nothing in {str(path)!r}, expected a token",
                field="CONSUL_HTTP_TOKEN_FILE",
            )

    def __call__(self) -> str:
        """The current token."""
        try:
            self._refresh()
        except OSError as error:
            if self._readable:
                log.warning("token_file.unreadable", path=str(self._path), reason=error.strerror)
            self._readable = False
        else:
            self._readable = True
        return self._token

    def _refresh(self) -> None:
        state = self._path.stat()
        mark = (state.st_mtime_ns, state.st_size, state.st_ino)
        if mark == self._mark:
            return
        token = self._path.read_text(encoding="utf-8").strip()
        # A file that is empty for a moment is a rotation in progress.
        self._token, self._mark = (token, mark) if token else (self._token, None)


def token_source(env: Mapping[str, str]) -> Callable[[], str] | None:
    """From ``CONSUL_HTTP_TOKEN_FILE``, which wins as in Consul's own tools, or ``CONSUL_HTTP_TOKEN``.

    Raises:
        InputInvalid: the file cannot be read or is empty.
    """
    path, token = env.get("CONSUL_HTTP_TOKEN_FILE", ""), env.get("CONSUL_HTTP_TOKEN", "").strip()
    if path:
        return TokenFile(Path(path))
    return (lambda: token) if token else None
