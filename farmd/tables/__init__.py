"""The columns and facts of lists and descriptions, the same on the command line and on the page.

Nothing here draws: ``farmd.cli`` writes these tables on a terminal, ``farmd.web`` as HTML.
"""

from typing import TYPE_CHECKING

from farmd import submodules

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__)
