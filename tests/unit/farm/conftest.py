"""Farms with toy workers over one embedded server, for the tests of the claim engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.toys import Farms


@pytest.fixture
async def farms() -> AsyncIterator[Farms]:
    made = Farms()
    await made.set_up()
    yield made
    await made.close()
