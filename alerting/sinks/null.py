"""The alerter that tells nobody: for one-off commands and as the default where none is configured."""

from __future__ import annotations

from alerting.alert import Alert


class NullAlerter:
    """Satisfies ``alerting.alerter.Alerter`` (p2's no-op default)."""

    async def fire(self, alert: Alert) -> None:
        """Do nothing."""

    async def resolve(self, incident_key: str) -> None:
        """Do nothing."""

    async def adopt(self, alert: Alert) -> None:
        """Do nothing."""

    async def forget(self, incident_key: str) -> None:
        """Do nothing."""

    def owes(self, incident_key: str) -> bool:  # noqa: ARG002 - the protocol's name
        """Nobody was told."""
        return False
