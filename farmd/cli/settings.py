"""What the shared options of one command line say."""

from __future__ import annotations

from dataclasses import dataclass

import click

META = "farmctl.settings"
"""Where the options collect what was given, in click's context."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the shared options say. ``timeout`` in seconds; ``wait`` None: the command's own default."""

    http_addr: str | None = None
    token_file: str | None = None
    output: str = "table"
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    watch: bool = False
    yes: bool = False
    dry_run: bool = False
    force: bool = False
    reason: str = ""
    wait: bool | None = None
    timeout: float = 300.0

    @classmethod
    def of(cls, ctx: click.Context) -> Settings:
        """What was given so far on this command line."""
        return cls(**ctx.meta.get(META, {}))
