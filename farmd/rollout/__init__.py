"""Rollouts: from one version of a controller to the next, within a health floor (p2 ``pkg/roll``).

``stages.py`` turns the policy into goals, ``counts.py`` is the arithmetic of the floor, ``membership.py``
chooses the pods to move now, ``plan.py`` decides on phases; all four are pure. ``reader.py`` and
``actions.py`` are facts and writes, ``worker.py`` joins them, ``creation.py`` begins one, ``commands.py`` is
what people say.
"""
