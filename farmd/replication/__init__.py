"""Replication controllers: keep N copies of a pod on eligible nodes (p2 ``pkg/rc``).

``facts.py`` holds the snapshot and reads it, ``plan.py`` decides (pure), with ``healing.py`` for moves,
``writes.py`` carries plans out, ``report.py`` tells people, ``commands.py`` holds the commands, ``kind.py``
has the worker and joins it to the claim engine.
"""
