"""``farmctl completion``: the script that a shell needs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell; names of objects are completed, too.

    \b
    bash: source <(farmctl completion bash)
    zsh:  source <(farmctl completion zsh)
    fish: farmctl completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "farmctl", "_FARMCTL_COMPLETE").source())
