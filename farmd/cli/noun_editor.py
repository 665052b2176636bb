"""``edit`` and ``diff`` of every noun: a record as a file in a person's editor, and back."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from farmd.cli.asking import left_to_the_editor
from farmd.cli.changes import CHANGES_DUE, apply, described
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.noun_edit import FILES, converge, specs_in, specs_of
from farmd.cli.options import command
from farmd.cli.output import as_yaml, document, emit
from farmd.commands.mutation import Change, Mutation, title
from farmd.commands.noun import Noun, compare, edited
from farmd.commands.resolving import referring
from farmd.kinds import KINDS
from farmd.runtime.errors import Declined
from store.errors import InputInvalid

# ``farmctl rc diff`` and the like: what a file would change, and whether that is anything.


def comparing(noun: Noun[Any, Any]) -> click.Command:
    """``diff``."""

    async def run(invocation: Invocation, paths: tuple[str, ...], detailed_exitcode: bool) -> None:
        specs = await specs_of(invocation.call, noun, paths)
        found = [await compare(invocation.call, noun, spec) for spec in specs]
        due = [change for change in found if change.after]
        output = invocation.settings.output
        if output in {"json", "yaml"}:
            emit(invocation, document("DifferenceList", {"items": [_item(change) for change in found]}))
        elif output == "name":
            for change in due:
                click.echo(title(change))
        else:
            for change in due:
                click.echo("\n".join(described(change)))
            for change in found:
                if not change.after:
                    invocation.say(f"{title(change)}: nothing to change")
        if due and detailed_exitcode:
            raise click.exceptions.Exit(CHANGES_DUE)

    run.__doc__ = (
        f"What the files would change in {noun.words.many}; nothing is written.\n\n"
        "Values of the environment are not shown. -o name prints what would change."
    )
    help_ = f"Exit with {CHANGES_DUE} if something would change."
    option = click.option("--detailed-exitcode", is_flag=True, help=help_)
    return command("diff")(FILES(option(run)))


def _item(change: Change) -> dict[str, Any]:
    return {
        "object": title(change),
        "id": change.id,
        "name": change.name,
        "action": change.action if change.after else "",
        "before": change.before,
        "after": change.after,
        "details": list(change.details),
    }


# ``farmctl rc edit`` and the like: a record as a file in a person's editor, and back.
#
# What a person wrote is never lost: an error opens the editor again with the error as a comment, and what
# could not be written stays in its file, which is named.

_COMMENT = "#: "
T = TypeVar("T")


def editing(noun: Noun[Any, Any]) -> click.Command:
    """``edit``."""

    async def run(invocation: Invocation, name: str) -> None:
        call = invocation.call
        stored = await noun.find(call, name)
        text = as_yaml(referring(await noun.as_file(call, stored.record)))

        async def take(written: str) -> Mutation:
            specs = await specs_in(call, noun, [(written, "edit")])
            if len(specs) != 1:
                raise InputInvalid(f"edit: found {len(specs)} documents, expected one")
            return await edited(call, noun, stored, specs[0])

        async with edits(invocation, f"{noun.words.noun}/{stored.record.name}", text, take) as mutation:
            if mutation is not None:
                await apply(invocation.reviewing(), [mutation])
        if mutation is not None:
            await converge(invocation, noun, [mutation])

    run.__doc__ = (
        f"Change a {noun.words.one} in $VISUAL or $EDITOR.\n\n"
        "An invalid document opens the editor again, with the error as a comment. Saving it unchanged does "
        "nothing. The edit is refused if somebody else changed the record meanwhile."
    )
    if noun.pods is not None:
        way = KINDS.get(noun.words.gradual)
        how = (
            f"starts a {way.one}{noun.pods.gradual_if}" if way else f"is replaced in place, {noun.pods.pace}"
        )
        run.__doc__ += f" A changed pod {how}."
    return command("edit", mutates=True, waits=True, signs=True)(
        target(noun.words.noun, objects(noun.kind))(run)
    )


@asynccontextmanager
async def edits(
    invocation: Invocation, title: str, text: str, take: Callable[[str], Awaitable[T]]
) -> AsyncIterator[T | None]:
    """A person's edited text, as ``take`` reads it; None if nothing was changed.

    Where the block fails, what the person wrote stays in its file.

    Raises:
        Declined: an error was left as it stands.
    """
    _editor()  # or what is wrong with it would leave a file
    with _file(f"{title.replace('/', '-')}-", text) as path:
        taken = await _rounds(title, path, text, take)
        if taken is None:
            invocation.say(f"{title}: nothing was changed")
        yield taken


async def _rounds(title: str, path: Path, text: str, take: Callable[[str], Awaitable[T]]) -> T | None:
    """Open the editor until what is written fits; None where nothing was changed."""
    said = f"{title}: save to apply the change; exit without a change to cancel"
    refused = ""
    while True:
        written = _written(path, f"{_COMMENT}{said}\n{text}")
        if written == text or not written.strip():
            if refused:
                raise Declined(f"cancelled; nothing was written: {refused}")
            return None
        text = written
        try:
            return await take(text)
        except InputInvalid as error:
            said = refused = " ".join(error.message.split())


@contextmanager
def _file(prefix: str, text: str) -> Iterator[Path]:
    """A file for the editor, which stays where something fails and a person had changed the text."""
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=".yaml")
    os.close(handle)
    try:
        yield Path(name)
    except BaseException:
        if _uncommented(Path(name)) in {"", text}:
            Path(name).unlink(missing_ok=True)
        else:
            click.echo(f"farmctl: what you wrote is in {name}", err=True)
        raise
    Path(name).unlink()


def _written(path: Path, text: str) -> str:
    """What a person makes of a text, without farmctl's own comments.

    Raises:
        InputInvalid: the editor cannot be run, fails, or leaves no file.
    """
    path.write_text(text, encoding="utf-8")
    _open(path)
    if not path.exists():
        text = f"editor {_editor()!r}: found no file after it, expected {path}; nothing was written"
        raise InputInvalid(text)
    return _uncommented(path)


def _uncommented(path: Path) -> str:
    """The text of a file without farmctl's own comments; empty where there is no file."""
    if not path.exists():
        return ""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(_COMMENT))


def _editor() -> str:
    """The command of a person's editor.

    Raises:
        InputInvalid: none is named, and there is no terminal for the usual one.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    if not editor and not (sys.stdin.isatty() and sys.stdout.isatty()):
        hint = "set EDITOR, or change what get --file prints and pass it to update -f"
        raise InputInvalid("EDITOR: found nothing and no terminal, expected an editor", hint=hint)
    return editor or "vi"


def _open(path: Path) -> None:
    """Run the editor to its end.

    Raises:
        InputInvalid: it cannot be run, or fails.
    """
    editor = _editor()
    try:
        with left_to_the_editor():
            code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or error
        raise InputInvalid(f"editor {editor!r} cannot be run: {why}", hint="set EDITOR") from error
    if code:
        raise InputInvalid(f"editor {editor!r}: found exit code {code}, expected 0; nothing was written")
