"""farmctl: parses, calls the command functions of the packages, renders.

It talks to Consul directly, opens no session and works with no farm running. Starting it must stay
fast: nothing but click is imported before a command runs.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from farmd import cli
from farmd.cli import synonyms
from farmd.cli.groups import Commands, LazyGroup, group
from farmd.cli.options import shared
from farmd.kinds import KINDS
from farmd.process.start import import_structlog, pause_collection


def _commands() -> Commands:
    return {
        "deploy": (lambda: cli.deploy.deploy, "Compose files: deploy their services, after a plan."),
        "apply": (lambda: cli.apply.apply, "Bundles of objects: apply the files of an app."),
        "diff": (lambda: cli.apply.diff, "What apply would change."),
        "schema": (lambda: cli.schema.schema, "Fields of documents: types, defaults, limits."),
        "example": (lambda: cli.schema.example, "A commented example document of a kind."),
        "export": (lambda: cli.export.export, "Write the declared objects of the fleet to files."),
        "import": (lambda: cli.export.import_, "Create and change objects from exported files."),
        "all": (lambda: cli.everything.every, "All owners of pods, apps, services and nodes; get all."),
        "events": (lambda: cli.audit.events, "Changes and incidents by time; -f follows."),
        "farm": (lambda: cli.farm.farm, "Farms: which ones work, and on how much."),
        "pod": (
            lambda: cli.nouns.pod,
            "Pods: list them, read their logs, run commands in them, restart them.",
        ),
        "service": (lambda: cli.nouns.service, "Services: names for the pods that serve."),
        "volume": (lambda: cli.nouns.volume, "Volumes: which node has the data of which volume."),
        "config": (lambda: cli.config.config, "Config keys: values that manifests refer to."),
        "secret": (lambda: cli.secret.secret, "Secrets: sealed values that only some nodes can open."),
        "manifest": (lambda: cli.manifest.manifest, "Signed manifests: make keys, sign, verify."),
        "audit": (lambda: cli.audit.audit, "Who changed what, when and why."),
        "alert": (lambda: cli.alert.alert, "Alerts: what is open, and whether sinks work."),
        "failsafe": (lambda: cli.alert.failsafe, "Freezes of removals: show or acknowledge them."),
        "kubernetes": (lambda: cli.kubernetes.kubernetes, "Kubernetes: what farms need in a cluster."),
        "doctor": (lambda: cli.doctor.doctor, "Problems in the store, their causes and fixes."),
        "debug": (
            lambda: cli.doctor.debug,
            "Write the cluster's state, without secrets, to an archive for support.",
        ),
        "top": (lambda: cli.farm.top, "The fleet at a glance, live."),
        "token": (lambda: cli.token.token, "Tokens: for the page and its API, and for Consul."),
        "completion": (lambda: cli.manual.completion, "Completion for bash, zsh and fish."),
    }


# The errors of a write to a full disk or to a terminal that is gone.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


class _Nouns(LazyGroup):
    """The nouns of all kinds of work, and the commands that concern no single kind."""

    def lazy(self) -> Commands:
        """A kind without a group of its own has the commands that every noun has."""
        nouns = {
            kind.noun: (kind.group or partial(group, kind.family), kind.title)
            for kind in KINDS.values()
            if kind.noun and not kind.under
        }
        return {**nouns, **super().lazy()}

    def aliases(self) -> Mapping[str, str]:
        """Other words for nouns, and nouns whose commands are listed in the group of another one."""
        found = {alias: kind.noun for kind in KINDS.values() for alias in kind.aliases}
        return found | {kind.noun: kind.noun for kind in KINDS.values() if kind.under}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, or the group of a noun whose commands are listed elsewhere."""
        below = {kind.noun: kind.group for kind in KINDS.values() if kind.under and kind.group}
        return below[cmd_name]() if cmd_name in below else super().get_command(ctx, cmd_name)

    def instead(self, word: str) -> str:
        """What to do in place of a word that other tools have."""
        return synonyms.POINTERS.get(word, "") or synonyms.of_object(word)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve also the words of other tools."""
        if not {*args}.intersection(ctx.help_option_names):
            import_structlog()  # modules of commands would import it with rich, for 0.05 s
        words = synonyms.rewritten(args, {*self.list_commands(ctx), *self.aliases()})
        return super().resolve_command(ctx, words)


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from store.version import VERSION

        click.echo(f"farmctl {VERSION}")
        ctx.exit()


@click.group(
    cls=_Nouns,
    lazy=_commands,
    params=shared(root=True),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
def farmctl() -> None:
    """Inspect and control a farmd fleet.

    Consul is found as by every Consul tool: CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN_FILE, CONSUL_CACERT, …

    Exit codes: 0 ok, 1 failure, 2 usage, 3 changes are due, 4 not found, 5 conflict or locked, 6 denied,
    7 store unavailable, 8 timeout while waiting, 9 ended otherwise, 10 declined, 130 interrupted.
    """


def main() -> NoReturn:
    """Run farmctl with the process's arguments and exit."""
    pause_collection()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the shell closed it, which is no reason to fail
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the end
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except OSError as error:
        code = _unwritable(error)
    except KeyboardInterrupt:  # while the last line was written
        code = 130
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code. Errors are one line on stderr, and a hint where there is one."""
    verbose = "-v" in arguments or "--verbose" in arguments
    try:
        _refuse_bytes(arguments)
        result = farmctl.main(arguments, prog_name="farmctl", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        from farmd.tables.model import one_line

        where = error.ctx.command_path if error.ctx is not None else "farmctl"
        click.echo(f"farmctl: {one_line(error.format_message())}", err=True)
        click.echo(f"hint: {where} --help", err=True)
        return 2
    except click.Abort:  # at a question
        click.echo("\nfarmctl: interrupted; nothing was written", err=True)
        return 130
    except KeyboardInterrupt:
        click.echo("farmctl: interrupted", err=True)
        return 130
    except OSError as error:
        return _unwritable(error) if error.errno in _UNWRITABLE else _unusable(error)
    except Exception as error:  # noqa: BLE001 - the boundary to the shell; what is not ours goes on
        from farmd.cli.failures import report

        return report(error, verbose)
    return result if isinstance(result, int) else 0


def _refuse_bytes(arguments: list[str]) -> None:
    """Refuse arguments that are not UTF-8, which no name, text or file of a fleet can hold.

    Raises:
        UsageError: names the argument.
    """
    for number, text in enumerate(arguments, 1):
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise click.UsageError(f"argument {number}: found {text!a}, expected UTF-8")


def _unusable(error: OSError) -> int:
    """Report a file that cannot be used as it is named, such as one whose name is too long.

    Raises:
        OSError: it is not about a file.
    """
    if error.filename is None:
        raise error
    from farmd.tables.model import one_line

    click.echo(f"farmctl: {one_line(str(error.filename))}: {error.strerror or error}", err=True)
    return 2


def _unwritable(error: OSError) -> int:
    """Report that the output cannot be written: a full disk, or a terminal that is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would complain once more at exit
    click.echo(f"farmctl: the output cannot be written: {error.strerror or error}", err=True)
    return 1
