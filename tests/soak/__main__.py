"""``make soak``: a fleet under edits and faults for as long as one likes; exits 1 if something was found."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak import picture
from tests.soak.run import soak


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--servers", type=int, default=1, help="of Consul; several need root")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder of what it took")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="farmd-soak-"))
    asked.out.mkdir(parents=True, exist_ok=True)
    record = asked.out / "record.jsonl"
    print(f"seed {asked.seed}, {asked.minutes:g} minutes; logs of farms and agents: {folder}", flush=True)
    print(f"what it takes over time: {record}", flush=True)
    result = asyncio.run(soak(asked.seed, asked.minutes, folder, record, asked.servers))
    print(json.dumps(vars(result)))
    picture.main(record, asked.out / "picture.svg")
    if result.found:
        print("\n".join([f"FAILED with seed {asked.seed}:", *result.found]), file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
