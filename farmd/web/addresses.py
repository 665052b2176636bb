"""Where the page shows what a text names: a node, a pod, an item such as ``rc/web``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from farmd import kinds
from farmd.kinds import KINDS


def of_item(text: str) -> str:
    """The address of an item as people write it; one without a noun is of the main kind. Empty: none."""
    noun, slash, name = text.rpartition("/")
    family = kinds.family_of(noun) if slash else next(each.family for each in KINDS.values() if each.main)
    if not name or name == "-" or any(part in name for part in " :("):
        return ""
    if family in KINDS:
        return kinds.path(family, quote(name))
    return f"/{family}/{quote(name)}" if family == "services" else ""


def of_pod(node: str, instance: str) -> str:
    """The address of a pod."""
    return f"/nodes/{quote(node)}/pods/{quote(instance)}"


def of_cell(title: str, text: str, row: Any) -> str:
    """The address of what a cell of a table names; empty: it names nothing that has a page."""
    match title:
        case "NODE" if text and text != "-":
            return f"/nodes/{quote(text)}"
        case "INSTANCE" if getattr(row, "node", ""):
            return of_pod(row.node, text)
        case "OWNER" | "ITEM" | "REF":
            return of_item(text)
    return ""
