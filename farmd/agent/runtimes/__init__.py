"""How workloads run on a node: ``runtime.py`` says what a runtime does, the other modules are runtimes.

The agent knows runtimes only by the port. A runtime never decides: the plan (``agent/plan.py``) does.
"""
