"""Jobs: indexed members that each end well once, on the nodes of farmd or in Kubernetes (Kubeflow's job
controller).

Both backends share the plan, which is pure: ``plan.py`` with ``members.py`` and ``progress.py``, over the
types of ``facts.py``. Jobs on nodes stand on the frame: ``reader.py``, ``placing.py``, ``writes.py`` and
``worker.py`` are theirs. Jobs in Kubernetes are in ``farmd.kubernetes.jobs``.
"""
