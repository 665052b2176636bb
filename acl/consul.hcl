# Consul's own servers: each keeps itself in the catalogue, which sessions need.
node_prefix "" { policy = "write" }
service_prefix "" { policy = "read" }
