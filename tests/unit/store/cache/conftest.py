"""What tests of the cache share."""

from __future__ import annotations

import pytest

from tests.unit.store.cache.world import World


@pytest.fixture
async def world() -> World:
    """A registered store, and a cache of its ``rcs``."""
    made = World()
    await made.set_up()
    return made
