"""Asks a person before something that cannot be taken back, or that only a person may decide."""

from __future__ import annotations

import sys

import click

from farmd.cli.interrupts import interruptible
from farmd.cli.invocation import Invocation
from farmd.runtime.errors import Declined, Unconfirmed


def ask(invocation: Invocation, question: str, why: str) -> None:
    """Ask on a terminal; elsewhere ``-y`` is needed, because of the reason ``why``.

    Raises:
        Unconfirmed: there is no terminal to ask on, and ``-y`` is missing. Declined: a person said no.
    """
    if not invocation.settings.yes:
        ask_person(question, why, "pass -y to go on, or --dry-run to look")


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
        raise Unconfirmed(f"{why}, and there is no terminal to ask on", hint=hint)
    with interruptible():
        agreed = click.confirm(question, err=True)
    if not agreed:
        raise Declined("declined; nothing was written")
