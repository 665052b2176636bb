"""What a process is: daemon, services, wiring, lifecycle, signals, memory."""
