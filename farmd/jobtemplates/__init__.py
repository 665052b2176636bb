"""Job templates: jobs that starters ask for by parameters alone, each once per key.

``filling.py`` makes the job of a start and is pure; ``kind.py`` follows the starts and answers each in one
fenced transaction. Jobs are another kind: the registry of kinds names what makes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.cli.nouns
    import farmd.jobtemplates.commands
    import farmd.jobtemplates.kind
    import farmd.jobtemplates.metrics
    import farmd.tables.jobtemplates
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="jobtemplates",
    one="job template",
    many="job templates",
    noun="job-template",
    under="job",
    title="Job templates: jobs with parameters, which starters may run and not change.",
    first="farmctl job template create -f FILE",
    bundle_order=4,
    features=("jobtemplates.1",),
    unclaimed="no farm answers the starts of job templates: no job is made of them",
    runs=lambda: farmd.jobtemplates.kind.JobTemplates,
    asked=lambda: farmd.jobtemplates.commands.JOB_TEMPLATE,
    group=lambda: farmd.cli.nouns.job_template,
    makes=lambda: farmd.jobtemplates.commands.made_of,
    besides=lambda: farmd.tables.jobtemplates.besides,
    metrics=lambda: farmd.jobtemplates.metrics.METRICS,
)
