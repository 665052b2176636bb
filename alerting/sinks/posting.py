"""Posts messages over HTTP, with retries: what all sinks but the log share.

Redirects are not followed, and neither address nor secret is ever in an error: what a receiver says of a
refusal is told in one bounded line, without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from alerting.errors import DeliveryFailed, DeliveryRefused
from store.ports import Clock, Rng

FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
LONGEST_AFTER = 3600.0
MOST_BYTES = 4096
MOST_SAID = 200


@dataclass(frozen=True, slots=True)
class Message:
    """One attempt: a JSON body to an address; ``hidden`` are texts that no error may show."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()


class Poster:
    """Posts until the receiver accepts or refuses, or the attempts are used up.

    408, 429, 5xx, a timeout and a broken connection are tried again after 0.5 s, 1 s, 2 s, … (up to 30 s,
    with jitter); any other status but 2xx is a refusal. A ``Retry-After`` ends the attempts: the caller waits
    as long. ``timeout`` is in seconds for one attempt. The session belongs to the caller.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        clock: Clock,
        rng: Rng,
        *,
        timeout: float = 10.0,
        attempts: int = 5,
    ) -> None:
        self._session = session
        self._clock, self._rng = clock, rng
        self._timeout, self._attempts = timeout, attempts

    async def post(self, message: Callable[[], Message]) -> None:
        """Post what ``message`` makes anew for each attempt.

        Raises:
            DeliveryRefused: the receiver refused.
            DeliveryFailed: every attempt failed; the error is that of the last one.
        """
        retrying = AsyncRetrying(
            sleep=self._clock.sleep,
            stop=stop_after_attempt(self._attempts),
            wait=self._wait,
            retry=retry_if_exception(_soon),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                await self._once(message())

    async def _once(self, message: Message) -> None:
        headers = {"Content-Type": "application/json", **message.headers}
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._session.post(
                    message.url, data=message.body, headers=headers, allow_redirects=False
                ) as response,
            ):
                if 200 <= response.status < 300:
                    return
                said, after = await _said(response, message.hidden), self._after(response)
                status = response.status
        except TimeoutError as error:
            raise DeliveryFailed(f"no answer within {self._timeout:g} s") from error
        except aiohttp.ClientError as error:
            # The error's own text may hold the address, which may be a secret.
            why = error.strerror if isinstance(error, aiohttp.ClientOSError) else type(error).__name__
            raise DeliveryFailed(f"connection failed: {why or type(error).__name__}") from error
        text = f"status {status}, expected 2xx{said}"
        if status in (408, 429) or status >= 500:
            raise DeliveryFailed(text, status=status, after=after)
        raise DeliveryRefused(text, status=status)

    def _after(self, response: aiohttp.ClientResponse) -> float:
        """Seconds that the receiver asks to be left alone; 0: it says nothing."""
        text = response.headers.get("Retry-After", "")
        if text.isascii() and text.isdecimal():
            return min(LONGEST_AFTER, float(text))
        try:
            due = parsedate_to_datetime(text).timestamp() - self._clock.now()
        except (ValueError, OverflowError):  # no date, or a year that no clock reaches
            return 0.0
        return max(0.0, min(LONGEST_AFTER, due))

    def _wait(self, state: RetryCallState) -> float:
        full = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (state.attempt_number - 1))
        return self._rng.uniform(full / 2, full)


def _soon(error: BaseException) -> bool:
    """Whether another attempt may help soon."""
    return isinstance(error, DeliveryFailed) and not error.after


async def _said(response: aiohttp.ClientResponse, hidden: tuple[str, ...]) -> str:
    """What a receiver says of its refusal, such as the field that it does not like."""
    text = " ".join((await response.content.read(MOST_BYTES)).decode(errors="replace").split())
    for secret in filter(None, hidden):
        text = text.replace(secret, "[hidden]")
    shown = "".join(each if each.isprintable() else "?" for each in text)[:MOST_SAID]
    return f": {shown}" if shown else ""
