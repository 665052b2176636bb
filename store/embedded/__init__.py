"""The built-in Consul-compatible server for one machine: pure state machine, two faces."""
