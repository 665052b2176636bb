"""Jobs: indexed members that each end well once, on the nodes of farmd or in Kubernetes (Kubeflow's job
controller).

Both backends share the plan, which is pure: ``plan.py`` with ``members.py``, ``progress.py``, ``verdict.py``,
``ending.py``, ``admission.py``, ``services.py`` and ``standing.py``, over the types of ``model.py``.

Jobs on nodes stand on the frame: ``nodes/`` has their worker and their members; the faces of a kind of work
are here.

Of jobs in Kubernetes this is all but the access. ``controller.py`` is the engine, with the rooms to which it
delegates: ``names.py``, ``expectations.py``, ``adoption.py``, ``handlers.py``, ``slices.py``, ``gang.py``. In
``resources/`` ``kindfile.py`` and ``resource.py`` read kinds and resources, ``roster.py`` and ``podview.py``
their objects; ``bodies.py``, ``cluster_env.py`` and ``podgroups.py`` make new ones, ``conditions.py`` the
status.
"""
