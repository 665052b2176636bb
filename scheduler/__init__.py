"""Where things go: pure placement, and the asynchronous ``Scheduler`` protocol around it."""
