"""The signature of a webhook, for sender and receiver: HMAC-SHA256 over time stamp and body.

The signature covers the time stamp, so an intercepted delivery cannot be replayed later; receivers
compare in constant time and refuse old time stamps.
"""

from __future__ import annotations

import hashlib
import hmac

TIMESTAMP_HEADER = "X-Farmd-Timestamp"
SIGNATURE_HEADER = "X-Farmd-Signature"


def sign(secret: bytes, timestamp: int, body: bytes) -> str:
    """The signature header's value, ``sha256=<hex>``; ``timestamp`` is seconds since the epoch."""
    return "sha256=" + hmac.new(secret, b"%d." % timestamp + body, hashlib.sha256).hexdigest()


def verify(
    secret: bytes, timestamp: str, body: bytes, signature: str, *, now: float, tolerance: float = 300.0
) -> bool:
    """Whether a delivery is genuine and at most ``tolerance`` seconds from ``now``; for receivers."""
    if not (timestamp.isascii() and timestamp.isdecimal()) or abs(now - int(timestamp)) > tolerance:
        return False
    return hmac.compare_digest(sign(secret, int(timestamp), body).encode(), signature.encode())
