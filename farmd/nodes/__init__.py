"""Nodes: their commands, giving up absent agents (R21), and drains.

Each node is one claimed item. ``facts.py`` measures what this farm itself sees of absent agents,
``plan.py`` decides, ``kind.py`` writes the verdict for all farms and advances drains; the workers of pods
act on both.
"""
