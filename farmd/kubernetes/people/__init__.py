"""What people ask of jobs in Kubernetes through ``farmctl``: files, commands, views, waits."""
