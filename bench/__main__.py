"""``python -m bench [ROW ...]``: exit status 1 when a target is missed."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sys

import structlog

import bench


def main() -> int:
    """Run the rows that were named, or all."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    rows = sorted(m.name for m in pkgutil.iter_modules(bench.__path__) if m.name.startswith("p"))
    wanted = [row for row in rows if not sys.argv[1:] or row.split("_")[0] in sys.argv[1:]]
    if not wanted:
        print(
            f"bench: no such row; there are {', '.join(row.split('_')[0] for row in rows)}", file=sys.stderr
        )
        return 2
    met = [asyncio.run(importlib.import_module(f"bench.{row}").run()) for row in wanted]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
