"""``python -m store.embedded``: the embedded server as a process of its own, for one machine.

The first line of its output is its address, so that a caller may ask for port 0. SIGTERM and SIGINT
end it cleanly. Only this module uses the machine's clock and randomness; all others get them through
their constructors.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
from pathlib import Path

from store.embedded.dialects import dialect
from store.embedded.http import HttpFace
from store.embedded.server import VERSION, EmbeddedServer
from store.embedded.state import Limits, Log
from store.errors import StoreError


class LoopClock:
    """The event loop's own monotonic clock; satisfies ``state.Timer``."""

    def mono(self) -> float:
        """See ``store.ports.Clock``."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """See ``store.ports.Clock``."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        handle = loop.call_later(seconds, over.set_result, None)
        try:
            await over
        finally:
            handle.cancel()


class SystemIds:
    """``store.ports.Ids`` from the operating system's randomness."""

    def new(self) -> str:
        """See ``store.ports.Ids``."""
        return secrets.token_hex(8)


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; 0 after a clean stop, 2 for bad arguments, 1 if the server cannot start."""
    options = _parser().parse_args(arguments)
    host, _, port = options.http_addr.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        sys.stderr.write(f"--http-addr: found {options.http_addr!r}, expected HOST:PORT\n")
        return 2
    try:
        asyncio.run(_serve(host.strip("[]"), int(port), options))
    except (StoreError, OSError) as error:
        why = getattr(error, "strerror", None) or str(error)
        file = f"--data-dir: {error.filename}: " if isinstance(error, OSError) and error.filename else ""
        sys.stderr.write(f"store.embedded: {file}{why}\n")
        return 1
    return 0


async def _serve(host: str, port: int, options: argparse.Namespace) -> None:
    clock = LoopClock()
    limits = Limits(operations=options.operation_limit or dialect(options.version).operations)
    log = Log(options.data_dir) if options.data_dir else None
    try:
        state = log.load(clock, limits) if log else None
        server = EmbeddedServer(
            clock,
            rng=secrets.SystemRandom(),
            ids=SystemIds(),
            limits=limits,
            state=state,
            version=options.version,
        )
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with HttpFace(server, host or "127.0.0.1", port) as face:
            sys.stdout.write(f"{face.address}\n")
            sys.stdout.flush()
            await stop.wait()
    finally:
        if log:
            log.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m store.embedded", description=__doc__)
    parser.add_argument("--http-addr", default="127.0.0.1:8500", help="HOST:PORT; port 0 picks a free one")
    parser.add_argument("--data-dir", type=Path, help="keep data over restarts; without it all is in memory")
    parser.add_argument("--operation-limit", type=int, help="in a transaction; else that of the version")
    parser.add_argument("--version", default=VERSION, help="the Consul to imitate, such as 1.14.11")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
