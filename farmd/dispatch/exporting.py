"""Apps as bundle files: the documents of each app's wanted revision, and the command that applies them."""

from __future__ import annotations

from typing import Any

import msgspec

from farmd.commands.bundled import Written
from farmd.commands.mutation import Call
from farmd.dispatch.bundle import AppSpec, render
from store.apps import API_VERSION, App, AppStore
from store.errors import NotFound, RecordInvalid

_SETTINGS = tuple(name for name in AppSpec.__struct_fields__ if name in App.__struct_fields__)


class ExportedApps:
    """See ``farmd.commands.bundled.Exported``."""

    async def written(self, call: Call) -> Written:
        """All apps; each is a bundle of its own."""
        store, found = AppStore(call.client, call.keys), Written({}, [], [])
        apps, broken = await store.list()
        found.left.extend(error.message for error in broken)
        for name, stored in sorted(apps.items()):
            if stored.record.deleting:
                found.left.append(f"app/{name}: is being deleted")
                continue
            try:
                entries = await store.entries(name, stored.record.revision)
            except (NotFound, RecordInvalid) as error:
                found.left.append(f"app/{name}: {error.message}")
                continue
            documents = [_settings(name, stored.record)]
            path = f"apps/{name}"
            found.files[path] = [*documents, *(render(entry) for entry in entries if not entry.left)]
            if stored.record.paused:
                found.left.append(f"app/{name}: is paused, so commands do not apply {path}")
            else:
                found.commands.append(["farmctl", "apply", "-f", path, "-y"])
            found.left.extend(f"app/{name}: {entry.ref} is in no file" for entry in entries if entry.left)
        return found


def _settings(name: str, app: App) -> dict[str, Any]:
    """The document of an app's settings, without those that every app has."""
    usual = App(revision=1)
    said = {
        field: msgspec.to_builtins(getattr(app, field))
        for field in _SETTINGS
        if getattr(app, field) != getattr(usual, field)
    }
    return {"apiVersion": API_VERSION, "kind": "app", "name": name, **said}


EXPORTED = ExportedApps()
