"""HTTP/1.1 requests over kept connections: an asyncio protocol around llhttp's parser (``httptools``).

What must never break: no request that may change something is sent twice, and a request is reported as unsent
only if no byte of it can have left. Redirects are handed back, and an answer has a bound.
"""

from store.http.connection import Answer, Stream
from store.http.errors import HttpError, Lost, NeverLeft, NotHttp, TooLong, reason
from store.http.pool import KEEP_ALIVE_SECONDS, Peer, Pool, head, lines_of

__all__ = [
    "KEEP_ALIVE_SECONDS",
    "Answer",
    "HttpError",
    "Lost",
    "NeverLeft",
    "NotHttp",
    "Peer",
    "Pool",
    "Stream",
    "TooLong",
    "head",
    "lines_of",
    "reason",
]
