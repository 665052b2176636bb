"""What a user of the package gets with it may be used, changed and passed on like the package itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution

import pytest
from packaging.requirements import Requirement

EXTRAS = ("containers", "systemd", "signing")
ALLOWED = re.compile(
    r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MPL|Mozilla Public License 2)\b", re.IGNORECASE
)
REFUSED = re.compile(r"GPL|Affero|Commons Clause|SSPL|BUSL|Proprietary", re.IGNORECASE)


def installed(name: str, extras: tuple[str, ...]) -> Iterator[Distribution]:
    """A package and all that it asks for, each once."""
    seen: set[str] = set()
    waiting = [(name, extras)]
    while waiting:
        name, extras = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        seen.add(key)
        found = distribution(name)
        yield found
        asked = map(Requirement, found.requires or [])
        waiting += [(each.name, tuple(each.extras)) for each in asked if _applies(each, extras)]


def _applies(asked: Requirement, extras: tuple[str, ...]) -> bool:
    return asked.marker is None or any(asked.marker.evaluate({"extra": each}) for each in (*extras, ""))


def licence(found: Distribution) -> str:
    """What a package says of its licence, in any of the three places."""
    told = found.metadata.get_all("License-Expression") or found.metadata.get_all("Classifier") or []
    named = [each for each in told if "::" not in each or each.startswith("License ::")]
    return "; ".join(named) or (found.metadata.get("License") or "").partition("\n")[0]


PACKAGES = {found.name: licence(found) for found in installed("farmd", EXTRAS)}


def test_every_dependency_is_looked_at() -> None:
    assert {
        "aiohttp",
        "msgspec",
        "python-consul2",
        "aiodocker",
        "dbus-fast",
        "cryptography",
        "multidict",
    } <= PACKAGES.keys()


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_the_licence_of_a_dependency_allows_its_use(name: str) -> None:
    told = PACKAGES[name]
    assert ALLOWED.search(told), f"{name}: found the licence {told!r}, expected one that is allowed"
    assert not REFUSED.search(told), f"{name}: {told}"
