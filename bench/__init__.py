"""Performance budget: each row prints one JSON line with its ratio to a bare baseline of the same run.

``python -m bench`` runs all rows, ``python -m bench p1 p4`` some of them. Every row uses a real, durable
Consul with fsync. Machines are noisy, so measurements alternate with their baselines; medians are compared.
"""

from farmd.process.start import begin

# The bench's processes begin as those of production do.
begin()
