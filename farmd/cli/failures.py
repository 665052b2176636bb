"""Errors → one line on stderr, a hint, and an exit code (docs/cli.md)."""

from __future__ import annotations

import click
import msgspec

from farmd.runtime import errors as ours
from farmd.tables.model import one_line
from scheduler.errors import SchedulerError
from store import errors

FAILURE, USAGE, NOT_FOUND, CONFLICT, DENIED, UNAVAILABLE, TIMEOUT, OTHERWISE, DECLINED = (
    1,
    2,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
)

# The first class that fits decides; subclasses come before their parents.
_CODES: list[tuple[type[Exception], int]] = [
    (errors.InputInvalid, USAGE),
    (errors.CredentialInvalid, USAGE),
    (errors.Ambiguous, USAGE),
    (errors.TooLarge, USAGE),
    (ours.Unconfirmed, USAGE),
    (errors.NotFound, NOT_FOUND),
    (errors.NotRegistered, NOT_FOUND),
    (errors.Conflict, CONFLICT),
    (errors.TransactionRejected, CONFLICT),
    (errors.AccessDenied, DENIED),
    (errors.StoreUnavailable, UNAVAILABLE),
    (errors.UnexpectedAnswer, UNAVAILABLE),
    (errors.RecordInvalid, UNAVAILABLE),
    (errors.OutcomeUnknown, UNAVAILABLE),
    (ours.AgentUnavailable, UNAVAILABLE),
    (ours.WaitTimeout, TIMEOUT),
    (ours.EndedOtherwise, OTHERWISE),
    (ours.Declined, DECLINED),
    (SchedulerError, FAILURE),
    (errors.StoreError, FAILURE),
    (ours.FarmdError, FAILURE),
]

_HINTS: list[tuple[type[Exception], str]] = [
    (errors.AccessDenied, "the token may not do this: check CONSUL_HTTP_TOKEN_FILE or --token-file"),
    (errors.NoLeader, "Consul answers, but has no leader; run consul operator raft list-peers"),
    (
        errors.Throttled,
        "Consul has too many connections from here (http_max_conns_per_client), or a proxy hangs up",
    ),
    (errors.CredentialInvalid, "fix that file, or pass another one (farmctl --help)"),
    (errors.StoreUnavailable, "is Consul running there? check CONSUL_HTTP_ADDR or --http-addr"),
    (errors.UnexpectedAnswer, "what answers there is not Consul: check CONSUL_HTTP_ADDR or --http-addr"),
    (errors.OutcomeUnknown, "the change may or may not have been written: check before you repeat it"),
    (errors.NotRegistered, "start a farm first (farmd run, or farmd dev)"),
    (
        errors.RecordInvalid,
        "somebody wrote it by hand, or it is newer than this farmctl; farmctl doctor shows the fix",
    ),
]


def exit_code(error: Exception) -> int | None:
    """The exit code of a known error; None for any other, which is a bug."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


def hint(error: Exception) -> str:
    """What to do next; empty if unknown."""
    own = getattr(error, "hint", "") or getattr(error, "fields", {}).get("hint", "")
    return str(own) or next((text for kind, text in _HINTS if isinstance(error, kind)), "")


def report(error: Exception, verbose: bool) -> int:
    """Print a known error and return its exit code; raise any other again."""
    code = exit_code(error)
    if code is None:
        raise error
    click.echo(f"farmctl: {one_line(str(getattr(error, 'message', error)))}", err=True)
    if advice := hint(error):
        click.echo(f"hint: {one_line(advice)}", err=True)
    if verbose:
        click.echo(f"code: {getattr(error, 'code', '')}", err=True)
        for name, value in getattr(error, "fields", {}).items():
            if name != "hint":
                click.echo(f"{name}: {msgspec.json.encode(value, enc_hook=str).decode()}", err=True)
    return code
