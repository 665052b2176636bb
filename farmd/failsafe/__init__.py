"""Freeze, never panic: the guard of each kind, its evidence, the removal budget, alerts."""
