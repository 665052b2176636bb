"""What fault tests share in one run: where farm processes come from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import forked
from tests.fault.farm_process import Nursery


@pytest.fixture(scope="session", autouse=True)
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Forks farm processes, which end with it; the imports before that keep no test waiting."""
    forked.ready()
    with Nursery(tmp_path_factory.mktemp("farms")) as made:
        yield made
