"""``farmctl config set | get | list | edit | history | diff | delete``."""

from __future__ import annotations

import difflib

import click

from farmd.cli.changes import apply
from farmd.cli.groups import LazyGroup
from farmd.cli.invocation import Invocation
from farmd.cli.names import below, checked_prefix, target, targets
from farmd.cli.noun_edit import text_of
from farmd.cli.noun_editor import edits
from farmd.cli.options import Whole, command
from farmd.cli.output import document, emit, show
from farmd.commands import config_keys
from farmd.tables.model import Column, Table, clean
from store import config as keys
from store.errors import InputInvalid, NotFound
from store.times import plain, rfc3339

_VERSION = Whole(1, 2**63)


@click.group("config", cls=LazyGroup)
def config() -> None:
    """Config keys: values that manifests refer to.

    They lie in Consul below config/ of the cluster's prefix, for every reader to see: they are no secrets.
    """


_paths = below(keys.FAMILY)


@command("set", mutates=True, negative_numbers=True)
@target(keys.FAMILY, _paths)
@click.argument("value", required=False)
@click.option("--file", "path", type=click.Path(), help="Read the value from this file; - is stdin.")
async def set_(invocation: Invocation, name: str, value: str | None, path: str | None) -> None:
    """Set a config key to VALUE, or to the content of a file or stdin, byte for byte.

    The value is text of at most 64 KiB. The ten newest versions of each key are kept. The change is refused
    if somebody else changes the key at the same time. Running pods keep their values.
    """
    if (value is None) == (path is None):
        found = "nothing" if value is None else "both VALUE and --file"
        raise InputInvalid(f"value: found {found}, expected VALUE or --file FILE", field="value")
    text = text_of(path) if path is not None else value or ""
    await apply(invocation, [await config_keys.set_value(invocation.call, name, text)])


@command("get")
@target(keys.FAMILY, _paths)
@click.option("--version", type=_VERSION, default=None, help="The value at this version.")
async def get(invocation: Invocation, name: str, version: int | None) -> None:
    """The value of a config key; a line break is added if it does not end in one."""
    call, path = invocation.call, keys.valid_path(name)
    current = await call.client.read(keys.key_of(call.keys, path), mode="consistent")
    if version is None and current is None:
        raise keys.missing(path)
    at = version or (current.modify_index if current is not None else 0)
    text = await keys.value_at(call.client, call.keys, path, at)
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        emit(invocation, document("Config", {"key": path, "version": at, "value": text}))
    elif output == "name":
        click.echo(f"{keys.PREFIX}{path}")
    else:
        click.echo(text, nl=not text.endswith("\n"))


@command("list", lists=True)
@click.argument("prefix", default="", callback=checked_prefix)
async def list_(invocation: Invocation, prefix: str) -> None:
    """All config keys, or those that begin with PREFIX; values are not shown."""

    async def read() -> Table:
        return Table(
            kind="Config",
            rows=await config_keys.rows(invocation.call, prefix),
            columns=(
                Column("NAME", lambda row: row.key),
                Column("VERSION", lambda row: str(row.version)),
                Column("BYTES", lambda row: str(row.bytes)),
            ),
            name=lambda row: f"{keys.PREFIX}{row.key}",
            plain=plain,
            empty="no config keys: farmctl config set KEY VALUE",
        )

    await show(invocation, read)


@command("edit", mutates=True)
@target(keys.FAMILY, _paths)
async def edit(invocation: Invocation, name: str) -> None:
    """Change the value of a config key in $VISUAL or $EDITOR.

    Saving it unchanged does nothing. The edit is refused if somebody else changed the key meanwhile. A line
    break that the editor adds at the end of a value without one is dropped.
    """
    call, path = invocation.call, keys.valid_path(name)
    entry = await keys.existing(call.client, call.keys, path)
    before = keys.text_of(entry)

    async def take(written: str) -> str:
        added = written.endswith("\n") and not before.endswith("\n")
        return keys.valid_value(written.removesuffix("\n") if added else written)

    async with edits(invocation, f"{keys.PREFIX}{path}", before, take) as text:
        if text is not None:
            await apply(invocation, [await config_keys.set_value(call, path, text, entry)])


@command("history", lists=True)
@target(keys.FAMILY, _paths)
async def history(invocation: Invocation, name: str) -> None:
    """The versions of a config key that are kept, newest first: who set each, when and why."""
    path = keys.valid_path(name)

    async def read() -> Table:
        rows, broken = await config_keys.history(invocation.call, path)
        return Table(
            kind="ConfigVersion",
            rows=rows,
            columns=(
                Column("VERSION", lambda row: str(row.version)),
                Column("STATE", lambda row: row.state),
                Column("SET", lambda row: rfc3339(row.at) if row.at else "-"),
                Column("BY", lambda row: row.by or "-"),
                Column("BYTES", lambda row: str(row.bytes)),
                Column("REASON", lambda row: row.reason or "-"),
            ),
            name=lambda row: str(row.version),
            plain=plain,
            broken=broken,
        )

    await show(invocation, read)


@command("diff")
@target(keys.FAMILY, _paths)
@click.argument("before", type=_VERSION, required=False, metavar="[VERSION]")
@click.argument("after", type=_VERSION, required=False, metavar="[VERSION]")
async def diff(invocation: Invocation, name: str, before: int | None, after: int | None) -> None:
    """What changed between two versions of a config key.

    With one version, compares it with the current value; without one, the last two versions.
    """
    call, path = invocation.call, keys.valid_path(name)
    rows, _ = await config_keys.history(call, path)
    if before is None and len(rows) < 2:
        raise NotFound(f"{keys.PREFIX}{path} has one version only", kind=keys.FAMILY, id=path)
    ends = before or rows[1].version, after or rows[0].version
    old, new = [await keys.value_at(call.client, call.keys, path, version) for version in ends]
    was, now = [f"{keys.PREFIX}{path} version {version}" for version in ends]
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), was, now, lineterm=""))
    if invocation.settings.output in {"json", "yaml"}:
        fields = {"key": path, "from": ends[0], "to": ends[1], "lines": lines}
        emit(invocation, document("ConfigDiff", fields))
        return
    for line in lines:
        click.echo(clean(line))
    if not lines:
        invocation.say(f"{keys.PREFIX}{path}: the versions have the same lines")


@command("delete", mutates=True)
@targets(keys.FAMILY, _paths)
async def delete(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Delete config keys; their last versions are kept.

    Running pods keep their values.
    """
    await apply(invocation, [await config_keys.delete(invocation.call, name) for name in names])


for each in (set_, get, list_, edit, history, diff, delete):
    config.add_command(each)
