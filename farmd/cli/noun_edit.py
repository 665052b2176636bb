"""``create | update | restart | enable | disable | delete``, the same for every noun."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

from farmd.cli.asking import interruptible, on_terminal
from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target, targets
from farmd.cli.options import command
from farmd.cli.progress import progress
from farmd.commands import waiting
from farmd.commands.mutation import Call, Mutation, title
from farmd.commands.noun import Noun
from farmd.kinds import KINDS
from store.errors import InputInvalid
from store.several import several

FILES = click.option(
    "-f",
    "--file",
    "paths",
    required=True,
    multiple=True,
    type=click.Path(),
    help="YAML or JSON; - reads stdin. Several files are read in order, as if they were one.",
)


def creating(noun: Noun[Any, Any]) -> click.Command:
    """``create``."""

    async def run(invocation: Invocation, paths: tuple[str, ...]) -> None:
        specs = await specs_of(invocation.call, noun, paths)
        mutations = await several(partial(noun.create, invocation.call), specs)
        by_id = {mutation.change.id: spec for mutation, spec in zip(mutations, specs, strict=True)}

        async def write(mutation: Mutation) -> None:
            await noun.commit_create(invocation.call, mutation, by_id[mutation.change.id])

        await carry_out(invocation, noun, mutations, write)

    run.__doc__ = (
        f"Create {noun.words.many} from a file.\n\n"
        "All documents are checked before anything is written. Creating an equal one again changes nothing; "
        "a different one under the same name is a conflict."
    )
    return command("create", mutates=True, waits=True, signs=True)(FILES(run))


def updating(noun: Noun[Any, Any]) -> click.Command:
    """``update``; owners of pods replace them in place with ``--now``."""

    async def run(
        invocation: Invocation,
        paths: tuple[str, ...],
        now: bool = True,
        retry: bool = False,
        supersede: bool = False,
    ) -> None:
        asks = on_terminal() and not invocation.settings.yes  # the plan is shown before anything is written
        prepare = partial(noun.update, invocation.call, now=now, retry=retry, supersede=supersede or asks)
        mutations = await several(prepare, await specs_of(invocation.call, noun, paths))
        await carry_out(invocation, noun, mutations)

    run.__doc__ = f"Change {noun.words.many} to match a file.\n\n"
    if noun.pods is None:
        run.__doc__ += "Switches that the file omits stay as they are."
        return command("update", mutates=True, waits=True, signs=noun.pods is not None)(FILES(run))
    way = KINDS.get(noun.words.gradual)
    run.__doc__ += (
        "Counts and switches that the file omits stay as they are. "
        + (
            f"A changed pod starts a {way.one}{noun.pods.gradual_if}. "
            if way
            else "Without --now a changed pod is refused. "
        )
        + f"With --now pods are replaced in place, {noun.pods.pace}."
    )
    option = click.option("--now", is_flag=True, help=f"Replace pods in place, {noun.pods.pace}.")
    if way:
        again = click.option("--retry", is_flag=True, help="Also accept a version that was reverted before.")
        instead = click.option(
            "--supersede",
            is_flag=True,
            help=f"During a {way.one}: replace the incoming version with this one.",
        )
        return command("update", mutates=True, waits=True, signs=True)(FILES(option(again(instead(run)))))
    return command("update", mutates=True, waits=True, signs=True)(FILES(option(run)))


def restarting(noun: Noun[Any, Any]) -> click.Command:
    """``restart``."""

    async def run(invocation: Invocation, name: str) -> None:
        await carry_out(invocation, noun, [await noun.restart(invocation.call, name)])

    assert noun.pods is not None
    run.__doc__ = (
        f"Restart all pods of a {noun.words.one} in place, {noun.pods.pace}.\n\n"
        "A farm does it; pods that are down go first. --wait waits until all are available again."
    )
    return command("restart", mutates=True, waits=True)(target(noun.words.noun, objects(noun.kind))(run))


def enabling(noun: Noun[Any, Any]) -> click.Command:
    """``enable``."""

    async def run(invocation: Invocation, name: str) -> None:
        await carry_out(invocation, noun, [await noun.enable(invocation.call, name)])

    what = "add and remove pods of" if noun.pods is not None else "act on"
    run.__doc__ = f"Let the farms {what} a {noun.words.one} again."
    return command("enable", mutates=True, waits=True)(target(noun.words.noun, objects(noun.kind))(run))


def disabling(noun: Noun[Any, Any]) -> click.Command:
    """``disable``."""

    async def run(invocation: Invocation, name: str) -> None:
        await apply(invocation, [await noun.disable(invocation.call, name)])

    what, stays = ("adding and removing pods of", "its pods keep running")
    if noun.pods is None:
        what, stays = ("acting on", "what it created keeps running")
    run.__doc__ = f"Keep the farms from {what} a {noun.words.one}; {stays}."
    return command("disable", mutates=True)(target(noun.words.noun, objects(noun.kind))(run))


def deleting(noun: Noun[Any, Any]) -> click.Command:
    """``delete``."""

    async def run(invocation: Invocation, names: tuple[str, ...], cascade: bool = True) -> None:
        prepared = await several(partial(noun.delete, invocation.call, cascade=cascade), names)
        # A name and an id may mean the same record.
        mutations = list({mutation.change.id: mutation for mutation in prepared}.values())
        await apply(invocation, mutations)
        await _finish_deletions(invocation, noun, mutations)

    names = targets(noun.words.noun, objects(noun.kind))
    if noun.pods is None:
        run.__doc__ = f"Delete {noun.words.many}; waits until a farm has done it, unless --no-wait."
        return command("delete", mutates=True, waits=True)(names(run))
    run.__doc__ = f"Delete {noun.words.many}. Refused while pods remain, unless --cascade removes them first."
    option = click.option(
        "--cascade", is_flag=True, help="Remove the pods first; waits for it unless --no-wait."
    )
    return command("delete", mutates=True, waits=True)(names(option(run)))


def saying(noun: Noun[Any, Any], word: str, say: Callable[[Call, str], Awaitable[Mutation]]) -> click.Command:
    """A command to one item that ends by itself, such as ``pause``."""

    async def run(invocation: Invocation, name: str) -> None:
        await carry_out(invocation, noun, [await say(invocation.call, name)])

    run.__doc__ = say.__doc__
    return command(word, mutates=True, waits=word != "pause")(
        target(noun.words.noun, objects(noun.kind))(run)
    )


async def carry_out(
    invocation: Invocation,
    noun: Noun[Any, Any],
    mutations: Sequence[Mutation],
    write: Callable[[Mutation], Awaitable[Any]] | None = None,
) -> None:
    """Show all mutations, ask once, commit one after the other, and wait where that is asked for."""
    await apply(invocation, mutations, write)
    await converge(invocation, noun, mutations)


async def converge(invocation: Invocation, noun: Noun[Any, Any], mutations: Sequence[Mutation]) -> None:
    """With ``--wait``: wait until each has taken effect, with progress."""
    settings = invocation.settings
    if settings.wait is not True or settings.dry_run:
        return
    with going_on(invocation, mutations), progress(invocation) as report:
        for mutation in mutations:
            # A creation that somebody else made first has another id, so the name is used.
            name, kind = mutation.change.name, KINDS[mutation.change.kind]
            if kind.ended:
                await kind.ended()(invocation.call, mutation.change, settings.end_timeout, report)
                continue
            await waiting.convergence(invocation.call, noun, name, settings.timeout, report)


@contextmanager
def going_on(invocation: Invocation, mutations: Sequence[Mutation]) -> Iterator[None]:
    """On ^C, say that only the wait ends."""
    try:
        yield
    except asyncio.CancelledError:
        for change in (mutation.change for mutation in mutations):
            kind = KINDS[change.kind]
            noun = kind.noun or title(change).partition("/")[0]
            look = "status" if kind.ended and not kind.owns_pods else "describe"
            told = f"farmctl {noun} {look} {change.name}"
            invocation.say(f"{title(change)}: continues without this wait; {told}")
        raise


async def specs_of(call: Call, noun: Noun[Any, Any], paths: Sequence[str]) -> list[Any]:
    """The documents of the files, in order, with the values of the config keys that they refer to.

    Raises:
        InputInvalid: one cannot be read, is no text, or something in it does not fit; or two have one name.
    """
    return await specs_in(call, noun, texts_of(paths))


async def specs_in(call: Call, noun: Noun[Any, Any], texts: Sequence[tuple[str, str]]) -> list[Any]:
    """The documents of texts, each with its name, as ``specs_of``."""
    from farmd.commands.resolving import resolver

    return noun.file.parse_all(*texts, resolve=await resolver(call, texts))


def texts_of(paths: Sequence[str]) -> list[tuple[str, str]]:
    """The texts of the files, each with its name.

    Raises:
        InputInvalid: one cannot be read, is no text, or is given twice.
    """
    sources = ["stdin" if path == "-" else path for path in paths]
    if twice := next((source for source in sources if sources.count(source) > 1), ""):
        raise InputInvalid(f"-f: found {twice!r} twice, expected each file once", field="file")
    return [(text_of(path), source) for path, source in zip(paths, sources, strict=True)]


def text_of(path: str) -> str:
    """The text of a file or of stdin, of which no more is read than a file may have."""
    from farmd.commands.documents import MAX_BYTES

    raw = bytes_of(path, MAX_BYTES)
    if len(raw) > MAX_BYTES:
        raise InputInvalid(f"{path}: found more than {MAX_BYTES} bytes, expected fewer", source=path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputInvalid(
            f"{path}: found bytes that are not valid UTF-8, expected text", source=path
        ) from error


def bytes_of(path: str, most: int) -> bytes:
    """What a file or stdin has; of a longer one ``most`` bytes and one more.

    Raises:
        InputInvalid: it cannot be read.
    """
    try:
        with opened(path) as file:
            return file.read(most + 1)
    except OSError as error:
        raise InputInvalid(f"{path}: cannot be read: {error.strerror}", source=path) from error


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A file, or stdin, at which a person may sit."""
    if path == "-":
        with interruptible():
            yield sys.stdin.buffer
        return
    with Path(path).open("rb") as file:
        yield file


async def _finish_deletions(
    invocation: Invocation, noun: Noun[Any, Any], mutations: Sequence[Mutation]
) -> None:
    """Wait until the workers have deleted the marked records."""
    settings, word = invocation.settings, noun.words.noun
    if settings.dry_run:
        return
    marked = [mutation for mutation in mutations if mutation.change.action != f"{word}.delete"]
    if settings.wait is False:
        what = "its pods, then itself" if noun.pods is not None else "it"
        for mutation in marked:
            invocation.say(f"{word}/{mutation.change.name}: marked for deletion; a farm removes {what}")
        return
    with progress(invocation) as report:
        for done, change in enumerate(mutation.change for mutation in marked):
            with going_on(invocation, marked[done:]):
                await waiting.deletion(invocation.call, noun, change.id, settings.timeout, report)
            report(waiting.Look(noun=word, name=change.name, state="gone", desired=0, counts=False))
            if not settings.quiet and settings.output in {"table", "wide"}:
                click.echo(f"{word}/{change.name} deleted ({change.id})")
