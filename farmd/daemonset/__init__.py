"""Daemon sets: one pod on every eligible node (p2 ``pkg/ds``).

``model.py`` holds snapshot and plan, ``plan.py`` and ``pace.py`` decide (pure), ``reader.py`` reads, with
``eligibility.py`` for nodes and ``contention.py`` for rivals, ``worker.py`` carries plans out,
``commands.py`` holds the commands, ``kind.py`` joins it to the claim engine.
"""
