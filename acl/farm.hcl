# A farm: reads everything but secrets, writes the records that it works with. It does not write reality.
key_prefix "farmd/" { policy = "list" }

# Secrets are ciphertext, and manifests have what a pod needs of it: no farm reads the rest.
key_prefix "farmd/secrets/" { policy = "deny" }
key_prefix "farmd/secret-versions/" { policy = "deny" }
key_prefix "farmd/secret-groups/" { policy = "deny" }

# Its presence and its locks. Consul needs the right to write a key to check that the key is absent: a farm
# never writes `agents`, but a node counts as lost only if its agent's presence is proven absent.
key_prefix "farmd/farms/" { policy = "write" }
key_prefix "farmd/locks/" { policy = "write" }
key_prefix "farmd/agents/" { policy = "write" }

# The workers' decisions, state and statuses; each change with its audit record.
key_prefix "farmd/pods/" { policy = "write" }
key_prefix "farmd/intent/" { policy = "write" }
key_prefix "farmd/reserved/" { policy = "write" }
key_prefix "farmd/work/" { policy = "write" }
key_prefix "farmd/status/" { policy = "write" }
key_prefix "farmd/failsafe/" { policy = "write" }
key_prefix "farmd/audit/" { policy = "write" }

# A worker deletes the record and the name of a controller or daemon set that people marked for deletion.
# Registration writes the sentinels of these trees. A worker removes the starts of job templates, and answers them.
key_prefix "farmd/rcs/" { policy = "write" }
key_prefix "farmd/daemonsets/" { policy = "write" }
key_prefix "farmd/rollouts/" { policy = "write" }
key_prefix "farmd/deployments/" { policy = "write" }
key_prefix "farmd/jobs/" { policy = "write" }
key_prefix "farmd/runs/" { policy = "write" }
key_prefix "farmd/schedules/" { policy = "write" }
key_prefix "farmd/jobtemplates/" { policy = "write" }
key_prefix "farmd/starts/" { policy = "write" }
key_prefix "farmd/started/" { policy = "write" }
key_prefix "farmd/history/" { policy = "write" }
key_prefix "farmd/services/" { policy = "write" }
key_prefix "farmd/apps/" { policy = "write" }
key_prefix "farmd/trackers/" { policy = "write" }
key_prefix "farmd/names/" { policy = "write" }

# One-time keys for what pods use, which the page shows: not for their logs.
key_prefix "farmd/access/usage/" { policy = "write" }

# What agents note of commands in pods: farms move it to the audit log.
key_prefix "farmd/access/ends/" { policy = "write" }

# The stage of a drain; the record of a node that has an agent and no record yet.
key_prefix "farmd/nodes/" { policy = "write" }

# House-keeping deletes manifests without a reference, and their signatures.
key_prefix "farmd/manifests/" { policy = "write" }
key_prefix "farmd/signatures/" { policy = "write" }

# The first farm registers the cluster: its id, the schema, and the sentinels of the trees above and below.
key_prefix "farmd/meta/" { policy = "write" }
key "farmd/reality/.present" { policy = "write" }
key "farmd/reality/0/.present" { policy = "write" }
key "farmd/reality/1/.present" { policy = "write" }
key "farmd/reality/2/.present" { policy = "write" }
key "farmd/reality/3/.present" { policy = "write" }
key "farmd/reality/4/.present" { policy = "write" }
key "farmd/reality/5/.present" { policy = "write" }
key "farmd/reality/6/.present" { policy = "write" }
key "farmd/reality/7/.present" { policy = "write" }
key "farmd/reality/8/.present" { policy = "write" }
key "farmd/reality/9/.present" { policy = "write" }
key "farmd/reality/a/.present" { policy = "write" }
key "farmd/reality/b/.present" { policy = "write" }
key "farmd/reality/c/.present" { policy = "write" }
key "farmd/reality/d/.present" { policy = "write" }
key "farmd/reality/e/.present" { policy = "write" }
key "farmd/reality/f/.present" { policy = "write" }

# The session belongs to the Consul agent that the farm talks to, or to store.session_node. This rule lets a farm
# end every session; `session "NAME"` with the name of that node lets it end those of that node alone.
session_prefix "" { policy = "write" }
