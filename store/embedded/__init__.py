"""The built-in Consul-compatible server for one machine: a pure state machine with two faces."""
