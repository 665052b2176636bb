"""Jobs: indexed members that each end well once, on the nodes of farmd or in Kubernetes (Kubeflow's job
controller).

``plan.py`` decides for both backends and is pure, as ``members.py`` (what the end of a member means) and
``conditions.py`` (what people read) are. ``ports.py`` is what a backend gives. ``controller.py`` is the
engine for jobs of Kubernetes, with the rooms that it delegates to: ``names.py``, ``expectations.py``,
``adoption.py``, ``handlers.py`` and ``gang.py``.
"""
