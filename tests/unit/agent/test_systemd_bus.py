"""systemd's manager over D-Bus: how many connections the agent makes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import dbus_fast.aio
import pytest

from farmd.agent.runtimes.systemd import Systemd, SystemdSilent


class Bus:
    """A bus whose connection takes a turn of the loop."""

    made: ClassVar[list[Bus]] = []
    refuses = False

    def __init__(self, **_: Any) -> None:
        self.connected = False
        self.dropped = False
        self.made.append(self)

    async def connect(self) -> None:
        await asyncio.sleep(0)
        if self.refuses:
            raise ConnectionRefusedError
        self.connected = True

    async def call(self, message: Any) -> Any:
        assert self.connected
        return SimpleNamespace(message_type=None, body=[message.member])

    def disconnect(self) -> None:
        self.connected, self.dropped = False, True


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> type[Bus]:
    monkeypatch.setattr(Bus, "made", [])
    monkeypatch.setattr(dbus_fast.aio, "MessageBus", Bus)
    return Bus


async def test_questions_at_the_same_time_share_one_connection(bus: type[Bus]) -> None:
    systemd = Systemd("unix:path=/nowhere")
    assert await asyncio.gather(*(systemd.ask(f"Ask{n}") for n in range(3))) == ["Ask0", "Ask1", "Ask2"]
    assert len(bus.made) == 1
    systemd.close()
    assert bus.made[0].dropped


async def test_a_connection_that_fails_is_dropped(bus: type[Bus], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "refuses", True)
    asked = [Systemd("unix:path=/nowhere").ask("Ping"), Systemd("unix:path=/nowhere").ask("Ping")]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in outcomes] == [SystemdSilent, SystemdSilent]
    assert [each.dropped for each in bus.made] == [True, True]
