"""``farmctl debug bundle``: an archive for somebody who helps, without secrets."""

from __future__ import annotations

import io
import os
import re
import tarfile
from pathlib import Path

import aiohttp
import click

from farmd.cli.invocation import Invocation
from farmd.cli.lazy import LazyGroup
from farmd.cli.options import command
from farmd.config.sources import ConfigInvalid, load, printed
from farmd.doctor.bundle import PART_SECONDS, gathered
from farmd.tables.model import clean
from store.errors import InputInvalid
from store.words import count_of

_ADDRESS = re.compile(r'(\burl = "\w+://[^/"]*)/[^"]*')


@click.group("debug", cls=LazyGroup)
def debug() -> None:
    """What somebody who helps you needs to see."""


@command("bundle")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
async def bundle(invocation: Invocation, file: Path | None) -> None:
    """Write an archive about the cluster: farmd-debug-TIME.tar.gz, or FILE.

    In it: farms, agents, locks, statuses, freezes, the doctor's findings, the last hour of the audit log,
    this machine's configuration, limits of Consul, and metrics of the farms that answer. Not in it:
    manifests, environments, tokens. What could not be read is named in about.json.
    """
    now = invocation.call.clock.now()
    tls, path = invocation.tls(), file or Path(f"farmd-debug-{int(now)}.tar.gz")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PART_SECONDS)) as http:

        async def fetch(url: str, most: int) -> bytes:
            try:
                async with http.get(url, ssl=tls) as response:
                    found = bytearray()
                    async for chunk in response.content.iter_any():
                        found += chunk
                        if len(found) > most:
                            break
                    return bytes(found)
            except aiohttp.ClientError as error:
                raise OSError(str(error)) from error

        parts = await gathered(invocation.call, fetch, _config)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, content in sorted(parts.files.items()):
                info = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
                info.size, info.mtime, info.mode = len(content), int(now), 0o600
                archive.addfile(info, io.BytesIO(content))
    except OSError as error:
        raise InputInvalid(f"{path}: cannot be written: {error.strerror}") from error
    for name, why in sorted(parts.missing.items()):
        invocation.say(f"missing: {name}: {clean(why)}")
    click.echo(f"{path}: {count_of(len(parts.files), 'file')}; look at it before you send it")


def _config() -> str:
    try:
        text = "\n".join(printed(load(None, os.environ)))
    except ConfigInvalid as error:
        raise ValueError(str(error)) from error
    return _ADDRESS.sub(r"\1/[hidden]", text)  # receivers of webhooks know senders by a part of the path


debug.add_command(bundle)
