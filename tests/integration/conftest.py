"""What the tests of farmctl share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.farmctl import embedded


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """``host:port`` of a built-in server: keep to a prefix of your own."""
    with embedded() as found:
        yield found
