"""Placement of pods on nodes: pure functions, and the asynchronous ``Scheduler`` protocol around them."""
