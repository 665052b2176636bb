"""Jobs in Kubernetes: custom resources that farms work off as pods and services (Kubeflow's job controller).

``controller.py`` is the engine, with ``names.py`` and ``adoption.py``. ``kindfile.py`` and ``resource.py``
read kinds and resources, ``facts.py`` and ``pods.py`` their objects; ``bodies.py`` and ``podgroups.py``
make new ones, ``report.py`` the status. The plan is that of ``farmd.jobs``.
"""
