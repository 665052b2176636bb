"""The values of the shared options of one command line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import click

META = "farmctl.settings"
"""The place in click's context where the options collect their values."""
TIMEOUT = 300.0
SIGN_SECONDS = 90 * 86_400.0
"""For how long a signature holds unless people say it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the shared options. ``given_timeout`` and ``sign_for`` in seconds; ``wait`` None: the
    command's default; ``sign``: the file of the key that signs what the change lets start, or empty.
    ``dc``: the datacenter that is asked, empty for that of Consul here; ``all_dcs``: ask each of them.
    ``reviews``: that comes from the store, so a person looks at it before it is signed.
    """

    http_addr: str | None = None
    token_file: str | None = None
    dc: str = ""
    all_dcs: bool = False
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
    given_timeout: float | None = None
    sign: str = ""
    sign_for: float = SIGN_SECONDS
    reviews: bool = False

    @property
    def timeout(self) -> float:
        """How many seconds to wait for what may never come."""
        return TIMEOUT if self.given_timeout is None else self.given_timeout

    @property
    def end_timeout(self) -> float:
        """How many seconds to wait for what ends by itself, by deadlines of its own: by default as long."""
        return math.inf if self.given_timeout is None else self.given_timeout

    @classmethod
    def of(cls, ctx: click.Context) -> Settings:
        """The values so far on this command line."""
        return cls(**ctx.meta.get(META, {}))
