"""Daemon sets: one pod on every eligible node (p2 ``pkg/ds``).

``model.py`` is what a decision sees and says, ``plan.py`` decides (pure), ``worker.py`` is the loop,
``commands.py`` what people ask for, ``kind.py`` joins it to the claim engine.
"""
