"""docs/seeds.md leads people who know other systems to names that are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "seeds.md"
FOUND = sorted(set(re.findall(r"`([a-z_.]+):(\w+)`", PAGE.read_text())))


@pytest.mark.parametrize(("module", "name"), FOUND, ids=[":".join(each) for each in FOUND])
def test_each_name_is_there(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_the_page_names_all_five_systems() -> None:
    assert len(FOUND) > 30
