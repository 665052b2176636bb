"""Apps as bundle files: the documents of each app's wanted revision, and the command that applies them."""

from __future__ import annotations

from farmd.commands.bundled import Written
from farmd.commands.mutation import Call
from farmd.dispatch.bundle import render_all
from store.apps import AppStore
from store.errors import NotFound, RecordInvalid


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
            path = f"apps/{name}"
            found.files[path] = render_all(name, stored.record, entries)
            if stored.record.paused:
                found.left.append(f"app/{name}: is paused, so commands do not apply {path}")
            else:
                found.commands.append(["farmctl", "apply", "-f", path, "-y"])
            found.left.extend(f"app/{name}: {entry.ref} is in no file" for entry in entries if entry.left)
        return found


EXPORTED = ExportedApps()
