"""Freezes removals when the evidence is doubtful: the guard of each kind, its evidence, the removal budget,
alerts.
"""
