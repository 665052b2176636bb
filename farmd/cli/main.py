"""farmctl: what people type. Parses, calls the command functions of the packages, renders.

It talks to Consul directly, opens no session and works with no farm running. Starting it must stay
fast: nothing but click is imported before a command runs.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from farmd.cli.lazy import LazyGroup
from farmd.cli.options import shared

_COMMANDS = {
    "rc": ("farmd.cli.rc:rc", "Replication controllers: keep N copies of a pod."),
    "daemonset": ("farmd.cli.daemonset:daemonset", "Daemon sets: one pod on every eligible node."),
    "pod": ("farmd.cli.pod:pod", "Pods: list them, read their logs."),
    "node": ("farmd.cli.node:node", "Nodes: list, label, cordon."),
    "audit": ("farmd.cli.audit:audit", "Who changed what, when and why."),
    "failsafe": ("farmd.cli.failsafe:failsafe", "Freezes: why removals stand still."),
    "doctor": ("farmd.cli.doctor:doctor", "What is wrong in the store, why, and what to do."),
    "top": ("farmd.cli.top:top", "The fleet at a glance, live."),
    "completion": ("farmd.cli.completion:completion", "Completion for bash, zsh and fish."),
}


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from farmd.version import version

        click.echo(f"farmctl {version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    params=shared(root=True),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
def farmctl() -> None:
    """Ask farmd's fleet what it does, and tell it what to do.

    Consul is found as by every Consul tool: CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN_FILE, CONSUL_CACERT, …

    Exit codes: 0 ok, 1 failure, 2 usage, 4 not found, 5 conflict or locked, 6 denied,
    7 store unavailable, 8 timeout while waiting, 10 declined, 130 interrupted.
    """


def main() -> NoReturn:
    """Run farmctl with the process's arguments and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code. Errors are one line on stderr, and a hint where there is one."""
    verbose = "-v" in arguments or "--verbose" in arguments
    try:
        result = farmctl.main(arguments, prog_name="farmctl", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "farmctl"
        click.echo(f"farmctl: {error.format_message()}", err=True)
        click.echo(f"hint: {where} --help", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("farmctl: interrupted", err=True)
        return 130
    except Exception as error:  # noqa: BLE001 - the boundary to the shell; what is not ours goes on
        from farmd.cli.failures import report

        return report(error, verbose)
    return result if isinstance(result, int) else 0
