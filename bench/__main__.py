"""``python -m bench [ROW ...]``: exit status 1 when a target is missed or a row cannot be measured."""

from __future__ import annotations

import asyncio
import compileall
import importlib
import json
import pkgutil
import re
import sys

import structlog

import bench
from bench.processes import ROOT
from farmd.process.start import collect_rarely
from store.errors import StoreError

ROW_SECONDS = 590
CODE = ("alerting", "bench", "farmd", "scheduler", "store", "tests")


def main() -> int:
    """Run the rows that were named, or all."""
    collect_rarely()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    rows = sorted(m.name for m in pkgutil.iter_modules(bench.__path__) if re.match(r"[acgjlpsu]\d", m.name))
    wanted = [row for row in rows if not sys.argv[1:] or row.split("_")[0] in sys.argv[1:]]
    if not wanted:
        print(
            f"bench: no such row; there are {', '.join(row.split('_')[0] for row in rows)}", file=sys.stderr
        )
        return 2
    for folder in CODE:
        # An installed farm starts from bytecode, too; to compile all modules takes 0.2 s of a farm's start.
        compileall.compile_dir(ROOT / folder, quiet=2)
    try:
        met = [asyncio.run(_measured(row)) for row in wanted]
    except KeyboardInterrupt:
        return 130
    return 0 if all(met) else 1


async def _measured(row: str) -> bool:
    """Measure one row. A row that cannot be measured prints a line with the error; the other rows go on."""
    try:
        async with asyncio.timeout(ROW_SECONDS):
            met: bool = await importlib.import_module(f"bench.{row}").run()
    except (RuntimeError, TimeoutError, AssertionError, StoreError) as error:
        reason = str(error) or f"it took more than {ROW_SECONDS} s"
        print(json.dumps({"name": row, "ok": False, "error": reason}), flush=True)
        return False
    return met


if __name__ == "__main__":
    sys.exit(main())
