# Beside operator.hcl, for as long as it takes: doctor --fix of what the agent of a lost node reported last
# (stale-reality), and node forget, which proves that the agent is gone. Whoever has it can forge what agents say.
key_prefix "farmd/reality/" { policy = "write" }
key_prefix "farmd/agents/" { policy = "write" }
