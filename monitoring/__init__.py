"""What watches farmd: Prometheus' rules, and Grafana's dashboards as code."""
