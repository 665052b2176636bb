"""The log sink: one log line an alert. It is on by default, so that every alert leaves a trace."""

from __future__ import annotations

import structlog

from alerting.alert import Alert

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
