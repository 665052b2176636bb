"""Where alerts go: the log, a webhook, Slack, PagerDuty and Alertmanager."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from alerting.alert import Alert, Urgency
from alerting.errors import DeliveryFailed, DeliveryRefused
from store.ports import Clock, Rng
from store.times import rfc3339

# The signature of a webhook, for sender and receiver: HMAC-SHA256 over time stamp and body.
#
# The signature covers the time stamp, so an intercepted delivery cannot be replayed later; receivers
# compare in constant time and refuse old time stamps.

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


# The log sink: one log line an alert. It is on by default, so that every alert leaves a trace.

_log = structlog.get_logger()


class LogSink:
    """Writes ``alert.firing`` (error or warning, by urgency) and ``alert.resolved`` (info)."""

    name = "log"

    async def deliver(self, alert: Alert) -> None:
        """Log one line; ``details`` become one field, so that their names cannot hide another field's."""
        fields = {
            "incident_key": alert.incident_key,
            "name": alert.name,
            "item": alert.item,
            "summary": alert.summary,
            "description": alert.description,
            "urgency": alert.urgency,
            "details": alert.details,
            "links": alert.links,
        }
        if alert.state == "resolved":
            _log.info("alert.resolved", **fields)
        elif alert.urgency == "high":
            _log.error("alert.firing", **fields)
        else:
            _log.warning("alert.firing", **fields)

    async def close(self) -> None:
        """Do nothing: the log sink holds no resources."""


# Posts messages over HTTP, with retries: what all sinks but the log share.
#
# Redirects are not followed, and neither address nor secret is ever in an error: what a receiver says of a
# refusal is told in one bounded line, without them.

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
        """Post what ``message`` returns; it is called for each attempt.

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
        """Seconds until the receiver accepts another try; 0: unknown."""
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
    """The receiver's reason for a refusal, such as the invalid field."""
    text = " ".join((await response.content.read(MOST_BYTES)).decode(errors="replace").split())
    for secret in filter(None, hidden):
        text = text.replace(secret, "[hidden]")
    shown = "".join(each if each.isprintable() else "?" for each in text)[:MOST_SAID]
    return f": {shown}" if shown else ""


# Posts alerts to Prometheus' Alertmanager (API v2), which groups, silences and routes them further.
#
# Alertmanager forgets an alert that is not sent again: each one carries the time when it ends by itself,
# and the channel of this sink sends it again before (``KEEP_SECONDS``). So what a dead process told ends,
# too. The labels are the alert's identity. A severity that changes makes another alert, so an end goes out
# under both. Without the time when it began, Alertmanager takes the end for that, and the alert is never
# older than now.

KEEP_SECONDS = 60.0
# As long as Alertmanager's own default; several messages may be lost before an alert ends by mistake.
LASTS_SECONDS = 300.0
# What Prometheus' own alerts call it.
ANNOTATIONS = {"runbook": "runbook_url"}
ALERTMANAGER_SEVERITIES: dict[Urgency, str] = {"high": "critical", "low": "warning"}


class AlertmanagerSink:
    """Sends to one Alertmanager; ``url`` is its address, ``source`` the reporting farm."""

    name = "alertmanager"

    def __init__(self, poster: Poster, url: str, source: str, clock: Clock) -> None:
        self._poster, self._source, self._clock = poster, source, clock
        self._url = f"{url.rstrip('/')}/api/v2/alerts"

    async def deliver(self, alert: Alert) -> None:
        """Post one alert.

        Raises:
            DeliveryRefused: Alertmanager refused it.
            DeliveryFailed: every attempt failed; the message is that of the last one.
        """
        await self._poster.post(lambda: Message(self._url, msgspec.json.encode(self._alerts(alert))))

    async def close(self) -> None:
        """Do nothing: the HTTP session belongs to the caller."""

    def _alerts(self, alert: Alert) -> list[dict[str, Any]]:
        now = self._clock.now()
        if alert.state == "resolved":
            return [self._alert(alert, urgency, now, now) for urgency in ALERTMANAGER_SEVERITIES]
        return [self._alert(alert, alert.urgency, now, now + LASTS_SECONDS)]

    def _alert(self, alert: Alert, urgency: Urgency, now: float, ends: float) -> dict[str, Any]:
        own = {
            "alertname": alert.name,
            "incident_key": alert.incident_key,
            "severity": ALERTMANAGER_SEVERITIES[urgency],
        }
        if alert.item:
            own["item"] = alert.item
        labels = {label(name): text for name, text in alert.labels.items() if text} | own
        links = {ANNOTATIONS.get(name, name): url for name, url in alert.links.items()}
        told = {"summary": alert.summary, "description": alert.description, "farm": self._source}
        annotations = {label(name): text for name, text in {**alert.details, **links, **told}.items() if text}
        return {
            "labels": labels,
            "annotations": annotations,
            "startsAt": rfc3339(min(alert.since or now, ends), "milliseconds"),
            "endsAt": rfc3339(ends, "milliseconds"),
            "generatorURL": alert.links.get("page", ""),
        }


def label(name: str) -> str:
    """A name as Alertmanager accepts it."""
    text = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return text if re.match(r"[a-zA-Z_]", text) else f"_{text}"


# Sends alerts to PagerDuty as events of its Events API v2: trigger, acknowledge and resolve.
#
# The deduplication key is the incident key, so a repeated trigger changes the incident that is open, and
# the end of an incident resolves it, whichever farm sends it.

URL = "https://events.pagerduty.com/v2/enqueue"
CLIENT = "farmd"
MAX_DEDUP_KEY = 255
PAGERDUTY_SEVERITIES = {"high": "critical", "low": "warning"}
# An event about an incident that PagerDuty does not know is lost: a trigger goes before an acknowledgement.
ACTIONS = {"firing": ("trigger",), "acknowledged": ("trigger", "acknowledge"), "resolved": ("resolve",)}


class PagerDutySink:
    """Sends to one service of PagerDuty, which the routing key of its integration names. ``routing_key`` is
    called for each attempt; ``source`` is the farm that tells.
    """

    name = "pagerduty"

    def __init__(
        self,
        poster: Poster,
        routing_key: Callable[[], bytes],
        source: str,
        clock: Clock,
        *,
        url: str = URL,
    ) -> None:
        self._poster, self._key, self._source = poster, routing_key, source
        self._clock, self._url = clock, url

    async def deliver(self, alert: Alert) -> None:
        """Send the events of one alert.

        Raises:
            DeliveryRefused: PagerDuty refused it.
            DeliveryFailed: every attempt failed; the message is that of the last one.
        """
        at = rfc3339(self._clock.now(), "milliseconds")
        for action in ACTIONS[alert.state]:
            await self._poster.post(lambda action=action: self._message(alert, action, at))  # type: ignore[misc]

    async def close(self) -> None:
        """Do nothing: the HTTP session belongs to the caller."""

    def _message(self, alert: Alert, action: str, at: str) -> Message:
        key = self._key().decode(errors="replace")
        event: dict[str, Any] = {
            "routing_key": key,
            "event_action": action,
            "dedup_key": dedup_key(alert.incident_key),
        }
        if action == "trigger":
            links = [{"href": url, "text": name} for name, url in alert.links.items()]
            page = {"client_url": alert.links["page"]} if "page" in alert.links else {}
            event |= {"client": CLIENT, **page, "links": links, "payload": self._payload(alert, at)}
        return Message(self._url, msgspec.json.encode(event), hidden=(key,))

    def _payload(self, alert: Alert, at: str) -> dict[str, Any]:
        told = {"description": alert.description} if alert.description else {}
        return {
            "summary": alert.summary,
            "source": self._source,
            "severity": PAGERDUTY_SEVERITIES[alert.urgency],
            "timestamp": at,
            "component": alert.item or CLIENT,
            "class": alert.name,
            "custom_details": {**alert.labels, **alert.details, **told},
        }


def dedup_key(incident_key: str) -> str:
    """The incident key, with its end hashed where it is longer than PagerDuty accepts."""
    if len(incident_key) <= MAX_DEDUP_KEY:
        return incident_key
    end = hashlib.sha256(incident_key.encode()).hexdigest()[:16]
    return f"{incident_key[: MAX_DEDUP_KEY - 17]}-{end}"


# Posts alerts to a channel of Slack through an incoming webhook, whose address is the secret.

MAX_TEXT = 3000
MAX_FIELDS = 10
COLOURS = {"high": "danger", "low": "warning"}


class SlackSink:
    """Sends to one incoming webhook; ``url`` is called for each attempt."""

    name = "slack"

    def __init__(self, poster: Poster, url: Callable[[], bytes], clock: Clock) -> None:
        self._poster, self._url, self._clock = poster, url, clock

    async def deliver(self, alert: Alert) -> None:
        """Post one message.

        Raises:
            DeliveryRefused: Slack refused it, such as for a channel that is archived.
            DeliveryFailed: every attempt failed; the message is that of the last one.
        """
        await self._poster.post(lambda: self._message(alert))

    async def close(self) -> None:
        """Do nothing: the HTTP session belongs to the caller."""

    def _message(self, alert: Alert) -> Message:
        url = self._url().decode(errors="replace")
        if not url.startswith(("http://", "https://")):
            raise DeliveryFailed("the address of the webhook: found none, expected https://…")
        return Message(url, msgspec.json.encode(self._body(alert)), hidden=(url, url.rpartition("/")[2]))

    def _body(self, alert: Alert) -> dict[str, Any]:
        over = alert.state == "resolved"
        word = (
            f"{alert.urgency.capitalize()} urgency" if alert.state == "firing" else alert.state.capitalize()
        )
        facts = {**alert.labels, **alert.details}
        links = [f"<{url}|{plain(name)}>" for name, url in alert.links.items()]
        about = {"title": plain(alert.item), "title_link": alert.links.get("page", "")} if alert.item else {}
        attachment = {
            **about,
            "color": "good" if over else COLOURS[alert.urgency],
            "fallback": plain(alert.summary),
            "text": "\n".join(filter(None, (plain(alert.description)[:MAX_TEXT], " · ".join(links)))),
            "fields": [
                {"title": plain(name), "value": plain(value)[:MAX_TEXT], "short": len(value) < 30}
                for name, value in list(facts.items())[:MAX_FIELDS]
            ],
            "footer": plain(alert.incident_key),
            "ts": int(self._clock.now()),
        }
        return {"text": f"*{word}*: {plain(alert.summary)}", "attachments": [attachment]}


def plain(text: str) -> str:
    """A text that Slack shows as it is: no mention of people, no link of its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# Posts alerts as signed JSON to an HTTP address.
#
# The body is version 1 of a format that receivers rely on: fields are added, never renamed. Every attempt
# is signed again.


class WebhookBody(msgspec.Struct, frozen=True, omit_defaults=False):
    """The body of the request. ``at`` is when it was sent and ``since`` when the incident began, as RFC
    3339; ``since`` is empty where that is not known.
    """

    version: int
    state: str
    incident_key: str
    summary: str
    description: str
    urgency: str
    details: dict[str, str]
    at: str
    labels: dict[str, str]
    name: str
    item: str
    since: str
    links: dict[str, str]


class WebhookSink:
    """Sends to one address. ``secret`` is called for each attempt; an empty one means that the request is not
    signed.
    """

    name = "webhook"

    def __init__(
        self, poster: Poster, url: str, clock: Clock, *, secret: Callable[[], bytes] = bytes
    ) -> None:
        self._poster, self._url, self._clock, self._secret = poster, url, clock, secret

    async def deliver(self, alert: Alert) -> None:
        """Post until the receiver accepts or refuses, or the attempts are used up.

        Raises:
            DeliveryRefused: the receiver refused.
            DeliveryFailed: every attempt failed; the message is that of the last one.
        """
        await self._poster.post(lambda: self._message(alert))

    async def close(self) -> None:
        """Do nothing: the HTTP session belongs to the caller."""

    def _message(self, alert: Alert) -> Message:
        now, secret = self._clock.now(), self._secret()
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
                alert.labels,
                alert.name,
                alert.item,
                rfc3339(alert.since, "milliseconds") if alert.since else "",
                alert.links,
            )
        )
        headers = {TIMESTAMP_HEADER: str(int(now))}
        if secret:
            headers[SIGNATURE_HEADER] = sign(secret, int(now), body)
        return Message(self._url, body, headers, (self._url, secret.decode(errors="replace")))
