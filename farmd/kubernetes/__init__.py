"""Access to a Kubernetes API server, and what farmd does there; imported only where it is configured."""
