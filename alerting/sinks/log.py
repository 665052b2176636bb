"""The sink that cannot fail: one log line an alert. It is on by default, so no alert is ever lost unseen."""

from __future__ import annotations

import structlog

from alerting.alert import Alert

_log = structlog.get_logger()


class LogSink:
    """Writes ``alert.firing`` (error or warning, by urgency) and ``alert.resolved`` (info)."""

    name = "log"

    async def deliver(self, alert: Alert) -> None:
        """One line; ``details`` become one field, because their names are not ours to choose."""
        fields = {
            "incident_key": alert.incident_key,
            "summary": alert.summary,
            "description": alert.description,
            "urgency": alert.urgency,
            "details": alert.details,
        }
        if alert.state == "resolved":
            _log.info("alert.resolved", **fields)
        elif alert.urgency == "high":
            _log.error("alert.firing", **fields)
        else:
            _log.warning("alert.firing", **fields)

    async def close(self) -> None:
        """Nothing to free."""
