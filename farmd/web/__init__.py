"""HTTP: metrics, health, readiness, services, and the page."""

# ruff: noqa: F401

from typing import TYPE_CHECKING

from farmd import submodules

# What is referred to as ``web.pages`` is imported at its first use; mypy knows these modules by the list.
if TYPE_CHECKING:
    # fmt: off
    from farmd.web import actions, api, events, pages, planned, pods, site, targets, usage, visit
    # fmt: on
else:
    __getattr__ = submodules(__name__)
