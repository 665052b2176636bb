"""Rollouts: from one version of a controller to the next, within a health floor (p2 ``pkg/roll``).

``stages.py`` turns the policy into goals, ``membership.py`` chooses the pods to move now, within the floor,
``plan.py`` decides on phases; all three are pure. ``facts.py`` and ``writes.py`` are facts and writes,
``worker.py`` joins them, ``creation.py`` begins one, ``commands.py`` is what people say.
"""
