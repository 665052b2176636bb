# In addition to farm.hcl, for farms whose services are in Consul's catalogue (farmctl service catalog).

# The nodes that farmd makes for its pods there; no other node has such a name.
node_prefix "farmd-" { policy = "write" }

# The services that it registers. This rule allows every name: list the names, or a prefix that they have, where
# other services in this Consul are not farmd's. services.register_members needs farmd-farm and farmd-agent.
service_prefix "" { policy = "write" }
