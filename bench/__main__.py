"""``python -m bench [ROW ...] [--controllers N] [--pods-each N] [--nodes N]``

Exit status 1 when a target is missed or a row cannot be measured. The options set the size of the fleet of P2
to P5; the targets of these rows at ten times the usual size apply then.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import importlib
import json
import os
import pkgutil
import re
import sys

import structlog

import bench
from bench import fleet
from bench.processes import ROOT
from farmd.process.start import collect_rarely
from store.errors import StoreError

ROW_SECONDS = 590
CODE = ("alerting", "bench", "farmd", "scheduler", "store", "tests")


def main() -> int:
    """Run the rows that were named, or all."""
    collect_rarely()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    asked = _asked()
    rows = sorted(m.name for m in pkgutil.iter_modules(bench.__path__) if re.match(r"[acgjlpsu]\d", m.name))
    wanted = [row for row in rows if not asked or row.split("_")[0] in asked]
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


def _asked() -> list[str]:
    """The rows that were named; the size is passed on to modules not imported yet, and to children."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    for option, (_, usual) in fleet.SIZE.items():
        parser.add_argument(f"--{option}", type=int, metavar="N", help=f"default: {usual}")
    asked = vars(parser.parse_args())
    for option, (variable, _) in fleet.SIZE.items():
        if (value := asked[option.replace("-", "_")]) is not None:
            os.environ[variable] = str(value)
    importlib.reload(fleet)
    return list(asked["rows"])


async def _measured(row: str) -> bool:
    """Measure one row. A row that cannot be measured prints a line with the error; the other rows go on."""
    whole = asyncio.timeout(ROW_SECONDS * fleet.TIMES)
    try:
        async with whole:
            met: bool = await importlib.import_module(f"bench.{row}").run()
    except (RuntimeError, TimeoutError, AssertionError, StoreError) as error:
        late = f"it took more than {ROW_SECONDS * fleet.TIMES:.0f} s"
        reason = late if whole.expired() else str(error) or repr(error)
        print(json.dumps({"name": row, "ok": False, "error": reason}), flush=True)
        return False
    return met


if __name__ == "__main__":
    sys.exit(main())
