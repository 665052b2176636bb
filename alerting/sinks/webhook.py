"""Posts alerts as signed JSON to an HTTP address, with retries.

The body is version 1 of a format that receivers rely on: fields are added, never renamed. Every
attempt is signed anew, redirects are not followed, and neither address nor secret is ever logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from alerting.alert import Alert
from alerting.errors import DeliveryFailed, DeliveryRefused
from alerting.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from store.ports import Clock, Rng
from store.times import rfc3339

FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0


class WebhookBody(msgspec.Struct, frozen=True, omit_defaults=False):
    """The body of the request. ``at`` is when it was sent, as RFC 3339."""

    version: int
    state: str
    incident_key: str
    summary: str
    description: str
    urgency: str
    details: dict[str, str]
    at: str


class WebhookSink:
    """Sends to one address. ``timeout`` is in seconds for one attempt; ``secret`` is called for each
    attempt, and an empty secret means that the request is not signed.

    408, 429, 5xx, a timeout and a broken connection are tried again after 0.5 s, 1 s, 2 s, … (up to
    30 s, with jitter); any other status but 2xx is a refusal. The session belongs to the caller.
    """

    name = "webhook"

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        clock: Clock,
        rng: Rng,
        *,
        secret: Callable[[], bytes] = bytes,
        timeout: float = 10.0,
        attempts: int = 5,
    ) -> None:
        self._session = session
        self._url = url
        self._clock = clock
        self._rng = rng
        self._secret = secret
        self._timeout = timeout
        self._attempts = attempts

    async def deliver(self, alert: Alert) -> None:
        """Post until the receiver accepts or refuses, or the attempts are used up.

        Raises:
            DeliveryRefused: the receiver refused.
            DeliveryFailed: every attempt failed; the message is that of the last one.
        """
        retrying = AsyncRetrying(
            sleep=self._clock.sleep,
            stop=stop_after_attempt(self._attempts),
            wait=self._wait,
            retry=retry_if_exception_type(DeliveryFailed),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                await self._post(alert)

    async def close(self) -> None:
        """Do nothing: the HTTP session belongs to the caller."""

    async def _post(self, alert: Alert) -> None:
        now = self._clock.now()
        body = msgspec.json.encode(
            WebhookBody(
                1,
                alert.state,
                alert.incident_key,
                alert.summary,
                alert.description,
                alert.urgency,
                alert.details,
                rfc3339(now, "milliseconds"),
            )
        )
        headers = {"Content-Type": "application/json", TIMESTAMP_HEADER: str(int(now))}
        if secret := self._secret():
            headers[SIGNATURE_HEADER] = sign(secret, int(now), body)
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                status = response.status
        except TimeoutError as error:
            raise DeliveryFailed(f"no answer within {self._timeout:g} s") from error
        except aiohttp.ClientError as error:
            raise DeliveryFailed(f"connection failed: {type(error).__name__}") from error
        if status in (408, 429) or status >= 500:
            raise DeliveryFailed(f"status {status}, expected 2xx", status=status)
        if not 200 <= status < 300:
            raise DeliveryRefused(f"status {status}, expected 2xx", status=status)

    def _wait(self, state: RetryCallState) -> float:
        full = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (state.attempt_number - 1))
        return self._rng.uniform(full / 2, full)
