"""Daemon sets: one pod on every eligible node (p2 ``pkg/ds``).

``model.py`` is what a decision sees and says, ``plan.py`` and ``pace.py`` decide (pure), ``reader.py`` reads,
with ``eligibility.py`` for nodes and ``contention.py`` for rivals, ``worker.py`` carries out, ``commands.py``
is what people ask for, ``kind.py`` joins it to the claim engine.
"""
