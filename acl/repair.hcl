# In addition to operator.hcl, for a limited time: doctor --fix of the last reality of a lost node
# (stale-reality), and node forget, which proves that the agent is absent. A token with it can forge reality.
key_prefix "farmd/reality/" { policy = "write" }
key_prefix "farmd/agents/" { policy = "write" }
