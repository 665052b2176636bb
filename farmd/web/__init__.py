"""HTTP: metrics, health and readiness."""
