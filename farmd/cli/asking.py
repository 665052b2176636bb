"""Asks a person before something that cannot be taken back, or that only a person may decide."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import click

from farmd.cli.invocation import Invocation
from farmd.runtime.errors import Declined, Unconfirmed

# What ^C does while farmctl's loop waits for a person, and asyncio's own handler with it.


def interruptible() -> AbstractContextManager[None]:
    """Let ^C end what waits for a person: by asyncio's handler it would end once the loop runs on."""
    return _at_interrupt(signal.default_int_handler)


def left_to_the_editor() -> AbstractContextManager[None]:
    """Leave ^C to an editor while it runs. By asyncio's handler the first one would end farmctl afterwards,
    and the second one would kill the editor with what a person wrote.
    """
    # The editor does not inherit a handler, as it would SIG_IGN.
    return _at_interrupt(lambda *_: None)


@contextmanager
def _at_interrupt(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Call ``handler`` at ^C meanwhile; signals reach the main thread alone, so no other has a handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ask(invocation: Invocation, question: str, why: str) -> None:
    """Ask on a terminal; elsewhere ``-y`` is needed, because of the reason ``why``.

    Raises:
        Unconfirmed: there is no terminal to ask on, and ``-y`` is missing. Declined: a person said no.
    """
    if not invocation.settings.yes:
        ask_person(question, why, "pass -y to continue, or --dry-run to preview")


def on_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_person(question: str, why: str, hint: str) -> None:
    """Ask on a terminal, also where ``-y`` is given.

    Raises:
        Unconfirmed: there is no terminal to ask on; ``hint`` says what a script does.
        Declined: a person said no.
    """
    if not on_terminal():
        raise Unconfirmed(f"{why}, but there is no terminal to confirm it on", hint=hint)
    with interruptible():
        agreed = click.confirm(question, err=True)
    if not agreed:
        raise Declined("declined; nothing was written")
