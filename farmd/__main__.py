"""``farmd``: the daemon, the node agent, the one-machine cluster, checks of configuration and health.

This module only turns flags into the last layer of the configuration and calls the command. Heavy imports
are inside the commands, because ``farmd --version`` must be instant. Exit codes: 0 stopped cleanly, 1 crashed
or unhealthy, 2 wrong usage, 75 try again later, 78 bad configuration, 130 interrupted before it was up.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from farmd.process.start import begin, import_aiohttp
from store.version import VERSION

if TYPE_CHECKING:
    from farmd.config.sources import Loaded, Values

EXIT_CONFIG = 78
_CONFIG = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Default: /etc/farmd/farmd.toml.",
)
_LEVEL = click.option("--log-level", metavar="LEVEL", help="debug, info, warning, error or critical.")
_CONSUL = click.option("--consul", metavar="ADDRESS", help="Address of Consul, as in CONSUL_HTTP_ADDR.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="farmd")
def main() -> None:
    """Keep fleets converged. Consul is the only thing it needs."""
    begin()


@main.command(short_help="Run a farm: claim work and keep it converged.")
@_CONFIG
@_LEVEL
@_CONSUL
@click.option("--name", help="Name of this farm; default: the host's.")
@click.option("--port", type=int, help="HTTP port; 0 picks a free one.")
def run(
    path: Path | None, log_level: str | None, consul: str | None, name: str | None, port: int | None
) -> None:
    """Run a farm: claim work items and keep each of them converged."""
    flags: Values = {
        "farm": {"name": name},
        "store": {"address": consul},
        "log": {"level": log_level},
        "web": {"farm_port": port},
    }
    loaded = _loaded(path, flags)
    import_aiohttp()
    from farmd.process.daemon import run_farm

    sys.exit(run_farm(loaded, lambda: _load(path, flags), os.environ))


@main.command(short_help="Run a node's agent: run the pods placed there.")
@_CONFIG
@_LEVEL
@_CONSUL
@click.option("--node", help="Name of this node; default: the host's.")
@click.option(
    "--state-dir", type=click.Path(resolve_path=True), help="Folder for workloads, logs and the session's id."
)
@click.option("--port", type=int, help="HTTP port; 0 picks a free one.")
def agent(
    path: Path | None,
    log_level: str | None,
    consul: str | None,
    node: str | None,
    state_dir: str | None,
    port: int | None,
) -> None:
    """Run a node's agent: run the pods that the farms place on this machine."""
    flags: Values = {
        "agent": {"node": node, "state_dir": state_dir},
        "store": {"address": consul},
        "log": {"level": log_level},
        "web": {"agent_port": port},
    }
    loaded = _loaded(path, flags)
    import_aiohttp()
    from farmd.process.daemon import run_agent

    sys.exit(run_agent(loaded, lambda: _load(path, flags), os.environ))


@main.command(short_help="Run a whole cluster on this machine until ^C.")
@click.option("--farms", type=click.IntRange(1, 16), default=2, show_default=True, help="Number of farms.")
@click.option("--agents", type=click.IntRange(1, 25), default=5, show_default=True, help="Number of agents.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Folder to keep state in; default: nothing is kept."
)
@click.option("--http-addr", default="127.0.0.1:0", help="Where the store listens; default: a free port.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error", "critical"]),
    default="info",
    help="Lowest level that is logged.",
)
@click.option(
    "--engine",
    default="",
    metavar="SOCKET",
    help="Container engine; default: DOCKER_HOST, or the first usual socket that answers.",
)
@click.option(
    "--config",
    "config",
    type=click.Path(exists=True, dir_okay=False),
    help="Also use this file's values, except for names, folders, ports and the store.",
)
def dev(
    farms: int,
    agents: int,
    data_dir: Path | None,
    http_addr: str,
    log_level: str,
    engine: str,
    config: str | None,
) -> None:
    """Run a whole cluster on this machine until ^C: a store, farms and agents.

    Variables FARMD_SECTION__KEY count as they do for farmd run and farmd agent.
    """
    from farmd.dev.cluster import run_dev

    if config:
        _loaded(Path(config), {})  # or each process would name the file that is made of it
    sys.exit(run_dev(farms, agents, data_dir, http_addr, log_level, config or "", engine))


@main.command(short_help="Write what a host needs to run a farm or an agent.")
@click.option("--name", help="Name of this farm or node; default: the host's.")
@click.option(
    "--address", metavar="HOST", help="How other hosts reach this one; it then listens on all addresses."
)
@_CONSUL
@click.option(
    "--token-file",
    metavar="FILE",
    help="Store this Consul token for the unit; - prompts for it, or reads stdin.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default="/",
    help="Write below this folder, such as for an image.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.argument("role", type=click.Choice(["server", "node"]))
def init(
    role: Literal["server", "node"],
    name: str | None,
    address: str | None,
    consul: str | None,
    token_file: str | None,
    root: Path,
    yes: bool,
    dry_run: bool,
) -> None:
    """Write what a host needs to run a farm (server) or an agent (node): configuration, units, folders.

    Shows each file first, and asks. A file that exists is never changed, except for a token that you give.
    Both roles may be on one host.
    """
    from farmd.process.init import run_init

    run_init(
        role,
        root,
        token_file,
        name=name,
        address=address,
        consul=consul,
        yes=yes,
        dry_run=dry_run,
    )


@main.command("check-config", short_help="Check the configuration.")
@_CONFIG
@click.option("--print", "show", is_flag=True, help="Show each value and where it comes from.")
@click.option("--explain", "key", metavar="KEY", help="Explain one key in full.")
def check_config(path: Path | None, show: bool, key: str | None) -> None:
    """Check the configuration; exit 78 if it cannot be used."""
    loaded = _loaded(path, {})
    from farmd.config import sources as config_report
    from farmd.config.sources import ConfigInvalid
    from farmd.process.checks import open_to_all, troubles

    try:
        lines = list(config_report.explained(loaded, key)) if key else []
    except ConfigInvalid as error:
        raise click.BadParameter(error.lines[0], param_hint="--explain") from error
    if show:
        lines += config_report.printed(loaded)
    if lines:
        click.echo("\n".join(lines))
    for line in open_to_all(loaded.config.web):
        click.echo(f"farmd: warning: {line}", err=True)
    if found := troubles(loaded, os.environ):
        _refuse(found)
    if not lines:
        click.echo("the configuration is valid")


@main.command(short_help="Check the health of this machine's farm or agent.")
@_CONFIG
@click.option("--port", type=click.IntRange(1, 65535), help="Port of its HTTP; default: the configured one.")
@click.argument("role", type=click.Choice(["farm", "agent"]))
def health(path: Path | None, port: int | None, role: str) -> None:
    """Check the health of this machine's farm or agent; exit 1 if it is not healthy."""
    web = _loaded(path, {}).config.web
    from farmd.web.tls import Unhealthy, ask

    try:
        click.echo(ask(web, port or (web.farm_port if role == "farm" else web.agent_port)))
    except Unhealthy as error:
        click.echo(f"farmd: {error}", err=True)
        sys.exit(1)


def _load(path: Path | None, flags: Values) -> Loaded:
    from farmd.config.sources import load

    return load(path, os.environ, flags)


def _loaded(path: Path | None, flags: Values) -> Loaded:
    """The configuration, checked as every command checks it."""
    from farmd.config.sources import ConfigInvalid
    from farmd.process.checks import refused

    try:
        loaded = _load(path, flags)
    except ConfigInvalid as error:
        _refuse(error.lines)
    if mistakes := refused(loaded, os.environ):
        _refuse(mistakes)
    return loaded


def _refuse(lines: list[str]) -> NoReturn:
    for line in lines:
        click.echo(f"farmd: {line}", err=True)
    sys.exit(EXIT_CONFIG)


if __name__ == "__main__":
    main(prog_name="farmd")
