"""Schedules: jobs at times, each once.

``times.py`` has the times and is pure, as ``plan.py`` is; ``kind.py`` carries a plan out in one fenced
transaction, and has the one timer of a farm. Jobs are another kind: the registry of kinds names what makes
and deletes them.
"""
