"""Replication controllers: keep N copies of a pod on eligible nodes (p2 ``pkg/rc``).

``model.py`` holds snapshot and plan, ``plan.py`` decides (pure), with ``healing.py`` and ``transfer.py`` for
moves, ``reader.py`` reads, ``actions.py`` and ``worker.py`` carry plans out, ``commands.py`` holds the
commands, ``kind.py`` joins it to the claim engine.
"""
