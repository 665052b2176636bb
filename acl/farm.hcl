# A farm: sees everything, writes what it works with. Not what agents report (reality).
key_prefix "farmd/" { policy = "list" }

# Its presence and its locks. Consul asks for the right to write where a transaction only checks that a key is
# absent: `agents` is never written, but before a node counts as lost its agent must be proven gone.
key_prefix "farmd/farms/" { policy = "write" }
key_prefix "farmd/locks/" { policy = "write" }
key_prefix "farmd/agents/" { policy = "write" }

# What its workers decide, remember and tell; each change with its audit record.
key_prefix "farmd/pods/" { policy = "write" }
key_prefix "farmd/intent/" { policy = "write" }
key_prefix "farmd/reserved/" { policy = "write" }
key_prefix "farmd/work/" { policy = "write" }
key_prefix "farmd/status/" { policy = "write" }
key_prefix "farmd/failsafe/" { policy = "write" }
key_prefix "farmd/audit/" { policy = "write" }

# A worker takes away the record of a controller or daemon set that people marked for deletion, and its name.
# The sentinels of these trees lie among the records.
key_prefix "farmd/rcs/" { policy = "write" }
key_prefix "farmd/daemonsets/" { policy = "write" }
key_prefix "farmd/names/" { policy = "write" }

# The stage of a drain; the record of a node whose agent is there and which nobody has registered.
key_prefix "farmd/nodes/" { policy = "write" }

# House-keeping deletes manifests that nothing refers to.
key_prefix "farmd/manifests/" { policy = "write" }

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

# Its session belongs to the Consul agent that it talks to. `session "NAME"` with that agent's name is narrower.
session_prefix "" { policy = "write" }
