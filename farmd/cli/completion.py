"""``farmctl completion``: the script that a shell needs."""

from __future__ import annotations

import click

from farmd.cli.options import Exampled


@click.command("completion", cls=Exampled)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell; names of objects are completed, too.

    \b
    bash: source <(farmctl completion bash)
    zsh:  source <(farmctl completion zsh)
    fish: farmctl completion fish | source
    """
    from farmd.cli.manual import script

    click.echo(script("farmctl", ctx.find_root().command, shell))
