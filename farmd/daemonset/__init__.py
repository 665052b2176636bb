"""Daemon sets: one pod on every eligible node (p2 ``pkg/ds``).

``facts.py`` holds the snapshot and reads it, ``plan.py`` decides (pure), ``kind.py`` has the worker and
joins it to the claim engine, ``commands.py`` holds the commands.
"""
