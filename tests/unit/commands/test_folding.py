"""Warnings and lines as people see them on a terminal."""

from __future__ import annotations

from farmd.commands.waiting import alike


def test_a_warning_that_many_services_have_alike_is_one_line() -> None:
    said = [f"services.s{number}.build is ignored: no builds" for number in range(57)]
    told = alike(
        ["services.web.init is ignored: why", *said, "networks.x is ignored", "networks.x is ignored"]
    )
    assert told == [
        "services.web.init is ignored: why",
        "services s0, s1, s2 and 54 more: build is ignored: no builds",
        "networks.x is ignored",
    ]
