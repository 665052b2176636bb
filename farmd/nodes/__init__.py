"""Nodes: what people ask of them, when their agents are given up (R21), and how they are drained.

One claimed item a node. ``absence.py`` is what this farm itself sees of agents that are gone, ``plan.py``
decides, ``worker.py`` writes the verdict for all farms and advances a drain; RC workers act on both.
"""
