"""The suite of all runtimes and that of systemd's own parts, where systemd is the first process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import EngineMissing, PodmanEngine
from tests.systemd import Machine

pytestmark = pytest.mark.xdist_group("systemd")

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def machine(shared_engine: PodmanEngine) -> Iterator[Machine]:
    try:
        made = Machine(shared_engine)
    except EngineMissing as error:
        pytest.fail(str(error), pytrace=False)
    with made:
        yield made


@pytest.mark.parametrize("suite", ["test_contract.py", "units.py"])
def test_inside(machine: Machine, suite: str) -> None:
    done = machine.suite(str(HERE / suite))
    assert done.returncode == 0, done.stdout
