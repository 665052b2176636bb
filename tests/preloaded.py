"""Imports all that our programs and the farms of fault tests need; ``forked`` forks the process that did."""

from __future__ import annotations

import importlib
import pkgutil

from farmd.process.start import begin, collect_rarely

begin()

import alerting  # noqa: E402
import farmd  # noqa: E402
import scheduler  # noqa: E402
import store  # noqa: E402
import tests.fault.farm_process  # noqa: E402, F401

for _package in (farmd, store, scheduler, alerting):
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        if not _module.name.endswith("__main__"):
            importlib.import_module(_module.name)
collect_rarely()
