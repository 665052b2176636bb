"""What every module may use: clock, wake-ups, tasks, errors."""
