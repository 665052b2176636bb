"""The node agent: intent to reality.

Start at ``agent.py``, which puts the parts together. ``intents.py`` → ``pods.py`` (what is wanted) →
``plan.py`` (pure) → ``supervisor.py`` → ``lifecycle.py`` → ``processes.py`` → ``shim.py`` (what runs) →
``reality.py``. ``link.py`` keeps the node's session and presence, ``state.py`` its directory.
"""
