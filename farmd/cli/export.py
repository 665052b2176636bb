"""``farmctl export | import``: what people said of a fleet, as a folder of files and back."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from farmd.apps.bundle import parse, texts
from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import text_of
from farmd.cli.options import command
from farmd.cli.output import as_yaml
from farmd.commands import exporting, signing
from farmd.commands.bundled import Written
from farmd.commands.resolving import resolver
from farmd.tables.model import clean
from store.errors import Conflict, InputInvalid
from store.words import count_of, listed

COMMANDS, SIGNATURES = "commands.sh", "signatures.txt"
# Half of what a file that is read may have (farmd.commands.documents).
MOST_BYTES, MOST_DOCUMENTS = 512 * 1024, 500
HEAD = "# Written by farmctl export; environments and commands are in it as people wrote them.\n"


@command("export")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER")
async def export(invocation: Invocation, folder: Path) -> None:
    """Write the declared objects into a folder: one file per noun and per app.

    The files contain controllers, daemon sets, services, jobs that are not over, apps, and labels, taints
    and capacity of nodes. Objects that a service or an app created have no file of their own. commands.sh
    contains what no file can express, and signatures.txt is for farmctl manifest restore.

    Files of an earlier export are replaced, and files of deleted objects are removed; other files stay. Only
    you can read the files, because they contain the environments of pods.
    """
    found = await exporting.written(invocation.call)
    files = dict(file for path in found.files for file in _files(path, list(map(as_yaml, found.files[path]))))
    if found.commands:
        lines = [f"{shlex.join(words)} || failed=1" for words in found.commands]
        files[COMMANDS] = "\n".join([HEAD + "failed=0", *lines, 'exit "$failed"', ""])
    if signed := await signing.saved(invocation.call):
        files[SIGNATURES] = "\n".join([HEAD.rstrip(), *signed, ""])
    try:
        _write(folder, files)
    except OSError as error:
        raise InputInvalid(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    for line in found.left:
        invocation.say(f"not written: {clean(line)}")
    if not invocation.settings.quiet:
        click.echo(f"{folder}: {_told(found)}")


def _files(path: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The files of some documents, each no larger than what is read again: ``rc.yaml``, ``rc-2.yaml``.

    An app has a folder of its own: ``apps/shop/1.yaml``.
    """
    groups, size = [[texts[0]]], len(texts[0].encode())
    for text in texts[1:]:
        size += len(text.encode())
        if size > MOST_BYTES or len(groups[-1]) == MOST_DOCUMENTS:
            groups.append([])
            size = len(text.encode())
        groups[-1].append(text)
    for number, group in enumerate(groups, 1):
        name = f"{path}/{number}" if "/" in path else f"{path}-{number}" if number > 1 else path
        yield f"{name}.yaml", HEAD + "---\n".join(group)


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
    former = [path for path in (*folder.glob("[!.]*.*"), *folder.glob("apps/*/*.yaml")) if path.is_file()]
    ours = {path for path in former if _is_ours(path)}
    for name in files:
        if (folder / name) in former and (folder / name) not in ours:
            raise InputInvalid(f"{folder / name}: found a file that export did not write, expected none")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    for path in ours - {folder / name for name in files}:
        path.unlink()


def _is_ours(path: Path) -> bool:
    """Whether an export wrote a file; one that cannot be read is somebody else's."""
    try:
        with path.open("rb") as file:
            return file.read(len(HEAD.encode())) == HEAD.encode()
    except OSError:
        return False


@command("import", mutates=True, signs=True)
@click.argument("paths", type=click.Path(), nargs=-1, required=True, metavar="FOLDER|FILE...")
@click.option("--overwrite", is_flag=True, help="Overwrite records that differ from the files.")
async def import_(invocation: Invocation, paths: tuple[str, ...], overwrite: bool) -> None:
    """Create the records from files that export wrote.

    All files are checked before anything is written. Records that match the files stay; records that differ
    are refused unless --overwrite, and the others are imported. Labels, taints and capacity are added to
    those that a node has. You may repeat an import that was interrupted.

    Apps and the commands of commands.sh come afterwards: cd FOLDER && sh commands.sh
    """
    documents: dict[str, tuple[str, Mapping[str, Any]]] = {}
    places = dict[str, str]()
    for text, name in texts(paths, text_of):
        bundle = parse([(text, name)], resolve=await resolver(invocation.call, [(text, name)]))
        for entry in bundle.entries:
            ref = str(entry.ref)
            where = bundle.places[ref]
            if bundle.app.name or not entry.ref.own:
                raise InputInvalid(f"{where}: found {ref} of an app, expected records: farmctl apply -f FILE")
            if ref in documents:
                raise InputInvalid(f"{where}: found {ref} again, expected it once; {places[ref]} has it, too")
            documents[ref], places[ref] = (entry.ref.kind, entry.document or {}), where
    if not documents:
        raise InputInvalid(
            f"{listed(list(paths), 5)}: found no record in the files, expected those of an export"
        )
    for folder in (path for path in paths if (Path(path) / COMMANDS).is_file()):
        invocation.say(f"apps and other commands come after this: cd {shlex.quote(folder)} && sh {COMMANDS}")
    refused, rehearsed = 0, invocation.settings.dry_run
    while documents:
        found = await exporting.prepared(invocation.call, documents, overwrite=overwrite)
        if found.same:
            invocation.say(f"{count_of(len(found.same), 'object')} as the files say: {listed(found.same, 5)}")
        for ref, why in found.refused.items():
            click.echo(f"farmctl: {ref}: {clean(why)}", err=True)
        await apply(invocation, found.mutations)
        refused += len(found.refused)
        for ref in found.later if rehearsed else ():
            invocation.say(f"{ref}: is created after the objects that it refers to")
        documents = {} if rehearsed else found.later
    if refused:
        hint = "" if overwrite else "--overwrite replaces them with what the files say"
        others = "nothing was written" if rehearsed else "all others done"
        raise Conflict(f"{count_of(refused, 'object')} refused, {others}", hint=hint)
