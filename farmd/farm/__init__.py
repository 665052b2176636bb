"""The claim engine: one session, batched claims, one supervised worker an item.

The engine knows no kind of work (``kind.py`` is the seam). ``plan.py`` decides what to claim, hand over and
release; ``farm.py`` is the loop; ``supervisor.py`` keeps the crash of one worker from touching any other.
"""
