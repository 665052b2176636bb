"""``farmctl doctor`` and ``farmctl debug``: what is wrong, and an archive for those who look into it."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import sys
import tarfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import click

from farmd import overview
from farmd.cli.changes import apply
from farmd.cli.cluster import Place, access_options, connected
from farmd.cli.groups import LazyGroup
from farmd.cli.invocation import Invocation, address
from farmd.cli.names import findings
from farmd.cli.options import command
from farmd.cli.output import document, emit, render
from farmd.config.sources import ConfigInvalid, load, printed
from farmd.doctor import certificates, fixes
from farmd.doctor.bundle import PART_SECONDS, gathered
from farmd.doctor.consul import NO_LEADER
from farmd.doctor.examine import examine, outside
from farmd.doctor.model import Finding, Report
from farmd.doctor.survey import Step
from farmd.runtime.tasks import end
from farmd.tables.model import Column, Table, clean
from store.consul.environment import Address
from store.errors import InputInvalid, StoreError
from store.words import count_of

# ``farmctl debug bundle``: an archive for somebody who helps, without secrets.

_ADDRESS = re.compile(r'(\burl = "\w+://[^/"]*)/[^"]*')


@click.group("debug", cls=LazyGroup)
def debug() -> None:
    """Information for whoever supports you."""


@command("bundle")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
async def bundle(invocation: Invocation, file: Path | None) -> None:
    """Write an archive about the cluster: farmd-debug-TIME.tar.gz, or FILE.

    It contains farms, agents, locks, statuses, freezes, the doctor's findings, the last hour of the audit
    log, this machine's configuration, limits of Consul, and metrics of the farms that answer. It does not
    contain manifests, environments or tokens. about.json lists what could not be read.
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


# ``farmctl doctor``: exit 0 when all is well, 1 with findings.

FINDINGS = 1
PATIENCE_SECONDS = 2.0


@command("doctor", mutates=True)
@click.option(
    "--fix",
    "targets",
    multiple=True,
    metavar="CODE|OBJECT|ID",
    shell_complete=findings,
    help="Fix the findings with this code, about this object, or of this owner or node. Repeatable.",
)
@access_options
async def doctor(invocation: Invocation, targets: tuple[str, ...], kubeconfig: str, context: str) -> None:
    """Problems in the store, their causes and fixes. Exits with 1 if there are any.

    Checks Consul and certificates, the cluster's sentinels and schema, farms and agents, freezes, blocked
    items, records that do not decode, and everything whose owner is gone; with a kubeconfig also the
    Kubernetes cluster that farms work in. Changes nothing without --fix.
    """
    clock = invocation.call.clock
    async with _steps_told(invocation) as step:
        report = await examine(invocation.client, invocation.keys, clock, step)
    if targets:
        chosen = fixes.choose(report.findings, targets)
        await apply(invocation, await fixes.mutations(invocation.call, chosen))
        return
    consul = Address.from_environment(os.environ, address(invocation.settings, os.environ))
    report = report.beside(await certificates.check(consul, os.environ, clock))
    if not report.has(NO_LEADER):
        report = (await _outside(invocation, Place(kubeconfig, context))).beside(report)
    _show(invocation, report)
    if report.findings:
        raise click.exceptions.Exit(FINDINGS)


@asynccontextmanager
async def _steps_told(invocation: Invocation) -> AsyncIterator[Step]:
    """Show on a terminal what is being read if that takes long; nothing with ``-q``."""
    reading = ""

    def step(what: str) -> None:
        nonlocal reading
        reading = what

    async def tell() -> None:
        told = ""
        while True:
            await invocation.call.clock.sleep(PATIENCE_SECONDS)
            if reading != told:
                invocation.say(f"reading {reading}")
                told = reading

    telling = [asyncio.create_task(tell())] if sys.stderr.isatty() else []
    try:
        yield step
    finally:
        await end(*telling)


async def _outside(invocation: Invocation, place: Place) -> Report:
    """What is found in the cluster that a person means, where farms work in one."""
    working = any(farm.clusters for farm in await overview.farms(invocation.client, invocation.keys))
    if not (working or place.named):
        return Report()
    if not place.configured(os.environ):
        return Report({"Kubernetes": "not examined: no kubeconfig (--kubeconfig, or KUBECONFIG)"})
    try:
        async with connected(place) as cluster:
            return await outside(invocation.call, cluster.transport)
    except StoreError as error:
        if place.named:
            raise
        return Report({"Kubernetes": f"not examined: {error.message}"})


def _show(invocation: Invocation, report: Report) -> None:
    if invocation.settings.output in {"json", "yaml"}:
        items = [finding.document() for finding in report.findings]
        emit(invocation, document("DoctorReport", {"facts": report.facts, "items": items}))
        return
    if invocation.settings.output != "name":
        for name, value in report.facts.items():
            invocation.say(f"{name}: {clean(value)}")
    if report.findings and invocation.settings.output == "table" and sys.stdout.isatty():
        for line in _blocks(report, shutil.get_terminal_size().columns):
            click.echo(line)
        return
    columns = (
        Column("CODE", lambda finding: finding.code),
        Column("OBJECT", lambda finding: finding.object),
        Column("EXPLANATION", lambda finding: finding.explanation),
        Column("FIX", lambda finding: finding.fix),
    )
    table = Table(
        kind="Finding",
        rows=report.findings,
        columns=columns,
        name=lambda finding: finding.object,
        plain=Finding.document,
        empty="nothing is wrong",
    )
    render(invocation, table)


def _blocks(report: Report, width: int) -> Iterator[str]:
    """Findings as paragraphs, because two long columns side by side are hard to read on a terminal."""
    for finding in report.findings:
        yield f"\n{finding.code}  {clean(finding.object)}"
        for text in (finding.explanation, f"fix: {finding.fix}"):
            yield textwrap.fill(
                clean(text), width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )
