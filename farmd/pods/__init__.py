"""What the state of a pod is: one definition for every kind of work that owns pods, and for people."""
