"""systemd's manager, asked over D-Bus so that nothing waits for it for ever.

dbus-fast is imported at the first question, so that an agent without systemd's runtime pays nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farmd.agent.errors import StartFailed

if TYPE_CHECKING:
    from dbus_fast.aio import MessageBus

ANSWER_SECONDS = 10.0
SYSTEMD = "org.freedesktop.systemd1"
MANAGER = SYSTEMD + ".Manager"
ROOT = "/org/freedesktop/systemd1"
ERROR = "org.freedesktop.DBus.Error."
# What the bus says in place of systemd, for example while systemd executes itself again.
SILENT = tuple(
    ERROR + name
    for name in (
        "NoReply",
        "ServiceUnknown",
        "NameHasNoOwner",
        "Disconnected",
        "Timeout",
        "TimedOut",
        "Spawn.",
    )
)


class SystemdSilent(StartFailed):
    """systemd did not answer, so nobody knows what it did."""

    code = "systemd_silent"


class SystemdRefused(StartFailed):
    """systemd answered with the D-Bus error ``name``."""

    code = "systemd_refused"

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class Systemd:
    """systemd on the bus at an address such as ``unix:path=/run/dbus/system_bus_socket``."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._bus: MessageBus | None = None
        self._connecting = asyncio.Lock()

    def require_owner(self) -> None:
        """Refuse a systemd that runs no units for this user.

        Raises:
            StartFailed: the bus is another user's, and the agent does not run as root.
        """
        path, me = Path(self._address.removeprefix("unix:path=")), os.geteuid()
        if me != 0 and path.exists() and (owner := path.stat().st_uid) != me:
            raise StartFailed(
                f"agent.systemd: found {path} of uid {owner}, expected one of uid {me}, because this agent"
                " does not run as root"
            )

    async def ask(
        self, member: str, signature: str = "", *body: Any, fds: Sequence[int] = (),
        path: str = ROOT, interface: str = MANAGER,
    ) -> Any:  # fmt: skip
        """Call a method; the first value of the answer.

        Raises:
            SystemdSilent: there was no answer in time, so the outcome is unknown.
            SystemdRefused: the answer was an error.
        """
        try:
            from dbus_fast import Message, MessageType
            from dbus_fast.errors import DBusFastError
        except ImportError as error:
            raise SystemdSilent(
                "agent.systemd needs dbus-fast, farmd's extra [systemd] (docs/operations.md#install)"
            ) from error
        call = Message(
            destination=SYSTEMD, path=path, interface=interface, member=member, signature=signature,
            body=list(body), unix_fds=list(fds),
        )  # fmt: skip
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await (await self._connected()).call(call)
        except (TimeoutError, OSError, EOFError, DBusFastError) as error:
            # What is not sent yet must not be sent later: its file descriptors may be others by then.
            self.close()
            reason = f": {error}" if str(error) else ""
            raise SystemdSilent(f"systemd at {self._address} does not answer{reason}") from error
        if answer is None or answer.message_type is not MessageType.ERROR:
            return answer.body[0] if answer is not None and answer.body else None
        name, text = answer.error_name or "", " ".join(str(part) for part in answer.body)
        if name.startswith(SILENT):
            raise SystemdSilent(f"systemd at {self._address} does not answer: {text}")
        raise SystemdRefused(text or name, name)

    async def _connected(self) -> MessageBus:
        """The connection, which all who ask at the same time share."""
        async with self._connecting:
            if self._bus is None or not self._bus.connected:
                self._bus = await self._connect()
            return self._bus

    async def _connect(self) -> MessageBus:
        from dbus_fast.aio import MessageBus

        bus = MessageBus(bus_address=self._address, negotiate_unix_fd=True)
        try:
            await bus.connect()
        except BaseException:
            bus.disconnect()
            raise
        return bus

    def close(self) -> None:
        """Drop the connection."""
        if self._bus is not None:
            self._bus.disconnect()
            self._bus = None
