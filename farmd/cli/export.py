"""``farmctl export | import``: what people said of a fleet, as a folder of files and back."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import text_of
from farmd.cli.options import command
from farmd.cli.output import as_yaml
from farmd.commands import exporting, importing
from farmd.commands.bundled import Written
from farmd.dispatch.bundle import parse
from farmd.dispatch.bundle_files import texts
from farmd.tables.model import clean
from store.errors import Conflict, InputInvalid
from store.words import count_of, listed

COMMANDS = "commands.sh"
HEAD = "# Written by farmctl export; environments and commands are in it as people wrote them.\n"


@command("export")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER")
async def export(invocation: Invocation, folder: Path) -> None:
    """Write what people said into a folder: one file a noun, one an app.

    Controllers, daemon sets, services, jobs that are not over, apps, and labels, taints and capacity of
    nodes; what a service or an app made comes with that. commands.sh says what no file can. Files of an
    earlier export are replaced, and those of objects that are gone removed; other files stay. Only you can
    read them: they hold the environments of pods.
    """
    found = await exporting.written(invocation.call)
    files = {f"{path}.yaml": HEAD + "---\n".join(map(as_yaml, found.files[path])) for path in found.files}
    if found.commands:
        files[COMMANDS] = HEAD + "".join(f"{shlex.join(words)}\n" for words in found.commands)
    try:
        _write(folder, files)
    except OSError as error:
        raise InputInvalid(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    for line in found.left:
        invocation.say(f"not written: {clean(line)}")
    if not invocation.settings.quiet:
        click.echo(f"{folder}: {_told(found)}")


def _told(found: Written) -> str:
    return ", ".join(
        [
            *(count_of(len(each), path) for path, each in found.files.items() if "/" not in path),
            count_of(sum("/" in path for path in found.files), "app"),
        ]
    )


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write the files, and remove those of an earlier export that are none of them.

    Raises:
        InputInvalid: a file of somebody else's bears the name of one. OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    former = [path for path in (*folder.glob("*.*"), *folder.glob("apps/*.yaml")) if path.is_file()]
    ours = {path for path in former if path.read_bytes().startswith(HEAD.encode())}
    for name in files:
        if (folder / name) in former and (folder / name) not in ours:
            raise InputInvalid(f"{folder / name}: found a file that export did not write, expected none")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, mode=0o700)
        part = path.with_name(f".{path.name}.part")
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    for path in ours - {folder / name for name in files}:
        path.unlink()


@command("import", mutates=True)
@click.argument("paths", type=click.Path(), nargs=-1, required=True, metavar="FOLDER|FILE...")
@click.option("--overwrite", is_flag=True, help="Change records that differ from the files.")
async def import_(invocation: Invocation, paths: tuple[str, ...], overwrite: bool) -> None:
    """Create the records of files that export wrote.

    All files are checked before anything is written. What is as the files say stays; what differs is refused
    unless --overwrite, and the rest goes on. An import that was interrupted may be run again. Apps and what
    commands.sh says come after it: cd FOLDER && sh commands.sh
    """
    bundle = parse(texts(paths, text_of))
    documents = {}
    for entry in bundle.entries:
        ref = str(entry.ref)
        if bundle.app.name or not entry.ref.own:
            where = bundle.places[ref]
            raise InputInvalid(f"{where}: found {ref} of an app, expected records: farmctl apply -f FILE")
        documents[ref] = (entry.ref.kind, entry.document or {})
    found = await importing.prepared(invocation.call, documents, overwrite=overwrite)
    if found.same:
        invocation.say(f"{count_of(len(found.same), 'object')} as the files say: {listed(found.same, 5)}")
    for ref, why in found.refused.items():
        click.echo(f"farmctl: {ref}: {clean(why)}", err=True)
    await apply(invocation, found.mutations)
    if found.refused:
        hint = "" if overwrite else "--overwrite takes what the files say"
        raise Conflict(f"{count_of(len(found.refused), 'object')} refused, all others done", hint=hint)
