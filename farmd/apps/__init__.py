"""Apps: bundles of objects that farms make, keep as their files say, and collect (KubeVela ``dispatch``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.apps.bundle
    import farmd.apps.kind
    import farmd.apps.metrics
    import farmd.apps.revision
    import farmd.cli.nouns
    import farmd.web.apps
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="apps",
    one="app",
    many="apps",
    noun="app",
    title="Apps: bundles of objects, their revisions and states.",
    first="farmctl apply -f FILE --app NAME",
    way="farmctl apply --app {name} with other files, or farmctl app release",
    runbooks=(("FarmdApp", "FarmdAppFailed"),),
    features=("config.1", "service-pods.1"),
    selectable=True,
    guarded=True,
    health_matters=False,  # each wave looks at the health of its own objects
    runs=lambda: farmd.apps.kind.Apps,
    group=lambda: farmd.cli.nouns.app,
    exported=lambda: farmd.apps.bundle.EXPORTED,
    listed=lambda: farmd.web.apps.AppList,
    author=lambda: farmd.apps.revision.latest,
    metrics=lambda: farmd.apps.metrics.METRICS,
)
