"""Apps' objects in Kubernetes: applied by the server, marked, judged and collected."""
