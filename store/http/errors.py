"""Why a request has no answer: as types for the sender, and in words for people."""

from __future__ import annotations

import os
import re
import socket
import ssl

_NO_TLS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
}
"""What OpenSSL says where a plain HTTP server answers, by version."""
_ERRNO = re.compile(r"\[Errno (\d+)\]")


class HttpError(Exception):
    """No answer; ``reason`` says why, for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def in_vain(self) -> bool:
        """Whether the time ran out."""
        return isinstance(self.__cause__, TimeoutError)


class NeverLeft(HttpError):
    """The request never left."""


class Lost(HttpError):
    """The request left, and no whole answer came; ``hung_up``: the peer ended the connection without any."""

    def __init__(self, reason: str, *, hung_up: bool = False) -> None:
        super().__init__(reason)
        self.hung_up = hung_up


class NotHttp(HttpError):
    """What came is no answer of HTTP."""


class TooLong(HttpError):
    """The answer is longer than it may be; ``status`` is its status."""

    def __init__(self, status: int) -> None:
        super().__init__("the answer is too long")
        self.status = status


def reason(error: BaseException) -> str:
    """Why no answer came, in the system's words if there are any; aiohttp wraps them in its own."""
    refused = getattr(error, "certificate_error", error)
    if isinstance(refused, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {refused.verify_message}"
    if isinstance(refused, ssl.CertificateError):
        return f"its certificate is refused: {refused}"
    cause = getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLError):
        return "it does not speak TLS" if cause.reason in _NO_TLS else f"TLS failed: {cause.reason or cause}"
    if isinstance(cause, socket.gaierror) and cause.strerror:
        return cause.strerror
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno)
    if isinstance(cause, OSError) and (found := _ERRNO.search(str(cause))):  # of several addresses
        return os.strerror(int(found[1]))
    return " ".join(str(error).split())[:160] or type(error).__name__
