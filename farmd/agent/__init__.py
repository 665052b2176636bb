"""The node agent: runs what the node's intents ask for and reports it as reality.

Start at ``agent.py``, which wires the parts. The data flows ``intents.py`` → ``pods.py`` (wanted pods) →
``plan.py`` (pure) → ``supervisor.py`` → ``lifecycle.py`` → ``runtimes/`` (processes, containers, units) →
``reality.py``. ``link.py`` keeps the node's session and presence, ``state.py`` the state directory.
"""
