"""Reads when certificates end. It parses DER itself, because Python's ``ssl`` only exposes verified
certificates.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _TIME = 0xA0, 0x17, 0x18


def end_of(certificate: bytes) -> float:
    """When a DER certificate ends, in seconds since the epoch (RFC 5280 §4.1).

    Raises:
        ValueError: it is no certificate.
    """
    try:
        ((_, whole),) = _parts(certificate)
        fields = [*_parts(next(_parts(whole))[1])]
        # version (may be absent), serial number, algorithm, issuer, validity
        _, (kind, end) = _parts(fields[4 if fields[0][0] == _VERSION else 3][1])
        text = end.decode("ascii")
        if kind not in (_UTC_TIME, _TIME) or not text.endswith("Z"):
            raise ValueError(text)
        if kind == _UTC_TIME:
            text = ("20" if int(text[:2]) < 50 else "19") + text
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (ValueError, IndexError, StopIteration) as error:
        raise ValueError("found no certificate") from error


def ends_of(pem: str) -> list[float]:
    """When the certificates of a PEM file end, in their order.

    Raises:
        ValueError: one of them does not decode.
    """
    return [end_of(ssl.PEM_cert_to_DER_cert(found)) for found in _PEM.findall(pem)]


def first_end(pem: bytes) -> float:
    """When the certificate of a PEM file ends, or one that it comes with, whichever is first.

    Raises:
        ValueError: there is none, or one of them does not decode.
    """
    return min(ends_of(pem.decode("ascii", "replace")))


async def served(host: str, port: int, context: ssl.SSLContext, name: str, seconds: float) -> float:
    """When the certificate of a server expires.

    Raises:
        OSError: no such server answers, or it is not trusted; ``TimeoutError`` is one, too.
        ValueError: it shows no certificate.
    """
    async with asyncio.timeout(seconds):
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(True) or b""
        writer.close()
    return end_of(shown)


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The values that follow one another, each with its tag."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            length = size & 0x7F
            size, at = int.from_bytes(data[at : at + length], "big"), at + length
        if at + size > len(data):
            raise ValueError("cut off")
        yield tag, data[at : at + size]
        at += size
