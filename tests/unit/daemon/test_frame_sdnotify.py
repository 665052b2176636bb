"""What systemd hears, and that no child can speak for the service."""

from __future__ import annotations

import os
import socket

import pytest
from structlog.testing import capture_logs

from farmd.process.lifecycle import Notifier
from farmd.runtime.clock import systemd_clock_usec
from tests.processes import NotifySocket


def test_without_a_socket_nothing_happens():
    notifier = Notifier.from_environment({})
    notifier.ready("x")
    assert notifier.watchdog_seconds == 0


def test_the_variables_are_taken_out_of_the_environment():
    env = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    assert Notifier.from_environment(env).watchdog_seconds == 30
    assert env == {"HOME": "/"}


def test_a_watchdog_of_another_process_is_not_ours():
    assert Notifier.from_environment({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog_seconds == 0


def test_messages_are_as_the_protocol_wants_them(tmp_path):
    with NotifySocket(tmp_path / "s") as systemd:
        notifier = Notifier(str(systemd.path))
        notifier.ready("two\nlines")
        notifier.reloading(systemd_clock_usec())
        notifier.watchdog()
        notifier.stopping("bye")
        assert systemd.next() == {"READY": "1", "STATUS": "two lines"}
        reloading = systemd.next()
        assert 0 < int(reloading["MONOTONIC_USEC"]) <= systemd_clock_usec()
        assert reloading["RELOADING"] == "1"
        assert systemd.next() == {"WATCHDOG": "1"}
        assert systemd.next() == {"STOPPING": "1", "STATUS": "bye"}


def test_an_abstract_socket_is_reached():
    name = f"farmd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name)
        systemd.settimeout(10)
        Notifier("@" + name).watchdog()
        assert systemd.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("address", ["/nonexistent/socket", "@farmd-nobody-listens"])
def test_a_socket_that_is_gone_is_told_once_and_stops_nothing(address):
    notifier = Notifier(address)
    with capture_logs() as lines:
        notifier.ready("x")
        notifier.watchdog()
    assert [line["event"] for line in lines] == ["systemd.not_notified"]
