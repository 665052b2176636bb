"""The cases that `make test` takes from the tiers of real parts, by what they guard: ``promises.toml``.

That file names for each rule of docs/protocol.md the cases that guard it, and for a case the commands of
farmctl that it runs. `make test` runs these, and the tiers of EVERYWHERE whole. A case that does not run a
command of its list fails, so the list is what it says.

``python -m tests.promises`` prints where its cases are; with ``rest`` where all others are; with ``rules``
the cases on real parts that guard a rule.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent
# The tiers that need Python, make and a Consul alone.
EVERYWHERE = {"contract", "stateful", "unit"}

_LISTED = tomllib.loads((TESTS / "promises.toml").read_text())
RULES: dict[str, list[str]] = _LISTED["rules"]
COMMANDS: dict[str, list[str]] = _LISTED["commands"]
NAMED = {case for cases in RULES.values() for case in cases} | set(COMMANDS)

asked: list[tuple[str, ...]] = []
"""The command lines that the present test gave to farmctl."""


def names(nodeid: str) -> set[str]:
    """The names by which the list may name a test: with its parameters, or without."""
    name = nodeid.removeprefix("tests/").partition("@")[0]  # xdist adds the test's group
    return {name, name.partition("[")[0]}


def in_make_test(nodeid: str) -> bool:
    """Whether `make test` runs a test that needs nothing special."""
    return nodeid.split("/")[1] in EVERYWHERE or not names(nodeid).isdisjoint(NAMED)


def not_run(nodeid: str) -> list[str]:
    """The commands that the list says of a test and that it did not run."""
    run = {" ".join(line[:count]) for line in asked for count in range(1, len(line) + 1)}
    said = {command for name in names(nodeid) for command in COMMANDS.get(name, [])}
    return sorted(said - run)


def places(rest: bool) -> list[str]:
    """Folders and files that hold the cases of `make test`, or what `make test-all` adds."""
    if rest:
        tests = [path for tier in EVERYWHERE for path in _tests(tier)]
        whole = {path for path in tests if re.search(r"mark\.whole|\bfirst\(", path.read_text())}
        tiers = {path for path in TESTS.iterdir() if path.name not in EVERYWHERE and _tests(path.name)}
        found = whole | tiers
    else:
        found = {TESTS / tier for tier in EVERYWHERE} | {
            TESTS / case.partition("::")[0] for case in NAMED if case.split("/")[0] not in EVERYWHERE
        }
    return sorted(str(path.relative_to(TESTS.parent)) for path in found)


def _tests(tier: str) -> list[Path]:
    return list((TESTS / tier).rglob("test_*.py"))


def of_rules() -> list[str]:
    """The cases that guard a rule on real parts."""
    cases = sorted({case for cases in RULES.values() for case in cases})
    return [f"{TESTS.name}/{case}" for case in cases if case.split("/")[0] not in EVERYWHERE]


if __name__ == "__main__":
    print(*(of_rules() if "rules" in sys.argv else places(rest="rest" in sys.argv)))
