"""The claim engine: one session, batched claims, one supervised worker an item.

Generic over the kind of work (``kind.py``). ``plan.py`` decides what to claim, hand over and release;
``farm.py`` is the loop; ``supervisor.py`` keeps one worker's crash from touching any other;
``failsafe.py`` freezes removals when the evidence is doubtful.
"""
