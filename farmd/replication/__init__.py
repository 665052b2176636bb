"""Replication controllers: keep N copies of a pod on eligible nodes (p2 ``pkg/rc``).

``model.py`` is what a decision sees and says, ``plan.py`` decides (pure), ``worker.py`` is the loop,
``commands.py`` what people ask for, ``kind.py`` joins it to the claim engine.
"""
