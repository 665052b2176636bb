"""How an apply ends is told by what has been reached, never by a status of a moment before."""

from __future__ import annotations

import pytest

from farmd.apps.scene import AppState
from farmd.cli.apply_flow import _reached
from store.apps import AppStatus, DispatchState


@pytest.mark.parametrize(("told", "end"), [(2, ": 3 of 3 objects ready"), (1, "")])
def test_the_count_of_an_older_status_is_left_out(told: int, end: str) -> None:
    status = AppStatus(state="reached", reached=told, objects=3, ready=3)
    standing = AppState(name="shop", state=DispatchState(reached=2), status=status)
    assert _reached(standing, 4.0) == f"reached revision 2 in 4 s{end}"
