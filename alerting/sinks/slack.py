"""Posts alerts to a channel of Slack through an incoming webhook, whose address is the secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from alerting.alert import Alert
from alerting.errors import DeliveryFailed
from alerting.sinks.posting import Message, Poster
from store.ports import Clock

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
