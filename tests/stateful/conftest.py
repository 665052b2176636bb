"""A fleet for each test; whatever the test asks, the protocol's promises are checked in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farmd.housekeeping.facts import DEFAULTS
from tests.stateful.scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(DEFAULTS)
    try:
        yield made
        made.check(replay=False)
    finally:
        made.close()
