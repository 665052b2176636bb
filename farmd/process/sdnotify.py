"""Tells systemd the service's state: ready, reloading, stopping, alive (sd_notify(3)).

Without ``NOTIFY_SOCKET`` all methods do nothing. The variable is removed from the environment, so that no
child can send messages for the service. A message that cannot be sent is logged once and never stops the
work: then systemd's own timeouts decide.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

import structlog

log = structlog.get_logger()


class Notifier:
    """The service's side of sd_notify. ``watchdog_seconds`` is 0 if systemd has no watchdog for it."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._failed = False
        self.watchdog_seconds = watchdog_seconds

    @classmethod
    def from_environment(cls, env: MutableMapping[str, str]) -> Notifier:
        """Read systemd's variables and remove them from ``env``."""
        address = env.pop("NOTIFY_SOCKET", "")
        usec, pid = env.pop("WATCHDOG_USEC", ""), env.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        return cls(address, int(usec) / 1e6 if usec.isdigit() and ours else 0.0)

    def ready(self, status: str) -> None:
        """Report that the service has started, or has reloaded."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self, usec: int) -> None:
        """Report a reload that began at ``usec`` of CLOCK_MONOTONIC; ``ready`` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={usec}", "STATUS=reloading")

    def stopping(self, status: str) -> None:
        """Report that a stop began."""
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Set the line for ``systemctl status``."""
        self._send(f"STATUS={text}")

    def watchdog(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        message = "\n".join(line.replace("\n", " ") for line in assignments)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.connect(self._address)
                to.sendall(message.encode())
        except OSError as error:
            if not self._failed:
                log.warning("systemd.not_notified", error=error.strerror)
            self._failed = True
        else:
            self._failed = False
