"""The frame that every kind of work is made of.

``kind.py`` joins a kind to the claim engine, ``worker.py`` is the one loop, ``status.py`` writes statuses,
``context.py`` holds the farm's parts. ``named.py`` is for kinds of records that people name; ``owner.py``
and ``owned.py`` are for records that own pods. All workers write through ``farmd.farm.writer``.
"""
