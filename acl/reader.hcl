# farmctl for whoever only looks: list, describe, explain, audit, top, doctor. Changes nothing.
#
# Manifests can be read with it, and with them what stands in the environment of pods.
key_prefix "farmd/" { policy = "list" }

# The doctor compares the limits of the Consul agent that answers with what farmd needs.
agent_prefix "" { policy = "read" }
