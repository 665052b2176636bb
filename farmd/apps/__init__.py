"""Apps: bundles of objects that farms make, keep as their files say, and collect (KubeVela ``dispatch``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import click

    from farmd.commands.bundled import Exported
    from farmd.declaration import Author, Listed
    from farmd.observe.metrics import Metric
    from farmd.work.kind import Kind


class AppKind(KindOfWork):
    """Apps."""

    family = "apps"
    one, many, noun = "app", "apps", "app"
    title = "Apps: bundles of objects, their revisions and states."
    first = "farmctl apply -f FILE --app NAME"
    way = "farmctl apply --app {name} with other files, or farmctl app release"
    runbooks = (("FarmdApp", "FarmdAppFailed"),)
    names = ("apps",)
    features = ("config.1", "service-pods.1")
    selectable = guarded = True
    health_matters = False  # each wave looks at the health of its own objects

    def runs(self) -> type[Kind]:
        from farmd.apps.kind import Apps

        return Apps

    def group(self) -> click.Group:
        from farmd.cli.nouns import app

        return app

    def exported(self) -> Exported:
        from farmd.apps.bundle import EXPORTED

        return EXPORTED

    def listed(self) -> Listed:
        from farmd.web.apps import AppList

        return AppList

    def author(self) -> Author:
        from farmd.apps.revision import latest

        return latest

    def metrics(self) -> tuple[Metric, ...]:
        from farmd.apps.metrics import METRICS

        return METRICS
