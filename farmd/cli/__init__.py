"""farmctl: parse, call, render; no logic."""

# ruff: noqa: F401, I001

from typing import TYPE_CHECKING

from farmd import submodules

# What is referred to as ``cli.apply`` is imported at its first use; mypy knows these modules by the list.
if TYPE_CHECKING:
    # fmt: off
    from farmd.cli import (
        alert, app_edit, app_show, apply, audit, config, deploy, doctor, everything, export, farm,
        job_cluster, job_run, job_show, job_template, kubernetes, logs, manifest, manual, node,
        node_show, noun_edit, noun_editor, noun_show, nouns, pod, pod_copy, pod_exec, pod_forward, rc_edit,
        rollout_edit, rollout_knative, rollout_ksvc, rollout_show, schedule_words, schema, secret,
        service_edit, service_show, token, usage, volumes,
    )
    # fmt: on
else:
    __getattr__ = submodules(__name__)
