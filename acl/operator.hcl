# farmctl for whoever changes things. Not what agents report (reality, agents), not the farms' presence
# (farms), not the cluster's own records (meta).
key_prefix "farmd/" { policy = "list" }

# What people say, and why.
key_prefix "farmd/rcs/" { policy = "write" }
key_prefix "farmd/daemonsets/" { policy = "write" }
key_prefix "farmd/names/" { policy = "write" }
key_prefix "farmd/manifests/" { policy = "write" }
key_prefix "farmd/nodes/" { policy = "write" }
key_prefix "farmd/failsafe/" { policy = "write" }
key_prefix "farmd/audit/" { policy = "write" }

# Every edit checks that nobody holds the item's mutation lock, which Consul counts as writing it, and
# --force deletes it. An item's own lock lies beside it, so a rule cannot tell the two apart.
key_prefix "farmd/locks/" { policy = "write" }

# Whoever deletes a controller takes its status, its work and the sentinel of its pods along, and
# doctor --fix takes away what belongs to nobody: pods, intents, reservations.
key_prefix "farmd/status/" { policy = "write" }
key_prefix "farmd/work/" { policy = "write" }
key_prefix "farmd/pods/" { policy = "write" }
key_prefix "farmd/intent/" { policy = "write" }
key_prefix "farmd/reserved/" { policy = "write" }

# Owners of these families may not exist while the doctor removes something: kinds of work to come.
key_prefix "farmd/rollouts/" { policy = "write" }
key_prefix "farmd/services/" { policy = "write" }
key_prefix "farmd/apps/" { policy = "write" }
key_prefix "farmd/jobs/" { policy = "write" }

agent_prefix "" { policy = "read" }
