"""HTTP: metrics, health, readiness, services, and the page."""
