"""The house in figures: ``python -m tests.figures [ROOT]`` prints them, one a line.

Lines and modules of the product, their median and largest, modules with a single importer, class names that
stand in more than two packages, the share of comment lines, and how many modules each way of
docs/architecture.md names.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PRODUCT = ("store", "scheduler", "alerting", "farmd")
SMALL, CAP = 80, 500


def modules(root: Path) -> dict[str, str]:
    """The product's modules by their dotted names, each with its text."""
    paths = [path for part in PRODUCT for path in (root / part).rglob("*.py")]
    names = {".".join(path.relative_to(root).with_suffix("").parts): path.read_text() for path in paths}
    return {name.removesuffix(".__init__"): text for name, text in names.items()}


def package(module: str) -> str:
    """The package that a module counts to: ``farmd.kubernetes.apps.marks`` to ``farmd.kubernetes``."""
    return ".".join(module.split(".")[: 2 if module.startswith("farmd.") else 1])


def many_names(texts: dict[str, str], most: int = 2) -> dict[str, set[str]]:
    """Names of top-level classes that stand in more than ``most`` packages; private ones do not count."""
    homes: dict[str, set[str]] = defaultdict(set)
    for module, text in texts.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(package(module))
    return {name: where for name, where in sorted(homes.items()) if len(where) > most}


def importers(texts: dict[str, str]) -> dict[str, set[str]]:
    """By whom each module is imported, at any depth of a module."""
    found: dict[str, set[str]] = {name: set() for name in texts}
    for module, text in texts.items():
        for name in _imported(ast.parse(text)):
            if name in found and name != module:
                found[name].add(module)
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names that a module imports: a name that is no module is an attribute, and its module counts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def comments(text: str) -> int:
    """Lines that hold a comment."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})


def ways(page: str) -> dict[str, int]:
    """How many modules each way of the architecture's page passes."""
    found = {}
    for section in page.split("\n## ")[1:]:
        title = section.partition("\n")[0]
        if title.startswith("The way of "):
            found[title.lower()] = len(set(re.findall(r"`([a-z_/]+\.py)`", section)))
    return found


def figures(root: Path) -> dict[str, object]:
    """All figures by their names."""
    texts = modules(root)
    sizes = {name: text.count("\n") for name, text in texts.items()}
    code = [size for name, size in sizes.items() if not (root / name.replace(".", "/")).is_dir()]
    lines = sum(sizes.values())
    single = [name for name, users in importers(texts).items() if len(users) == 1]
    many = many_names(texts)
    return {
        "lines": lines,
        "modules": len(sizes),
        "median lines": int(statistics.median(code)),
        "largest": max(code),
        f"modules under {SMALL} lines": sum(size < SMALL for size in code),
        "modules with a single importer": len(single),
        "class names in more than two packages": f"{len(many)}: {', '.join(many)}",
        "comment lines": f"{sum(map(comments, texts.values())) / lines:.1%}",
        **ways((root / "docs/architecture.md").read_text()),
    }


if __name__ == "__main__":
    for title, value in figures(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        print(f"{title}: {value}")
