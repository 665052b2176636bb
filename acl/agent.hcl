# The agent of one node: a template, see README.md. @NODE@ is the node's name, @SHARD@ the first hex digit of
# that name's one-byte blake2b hash, @CONSUL@ the name of the Consul agent that the agent talks to.
#
# The agent reads its own node's intents and writes its own node's reality, and no record of another node.
key "farmd/meta/cluster" { policy = "read" }
key_prefix "farmd/manifests/" { policy = "read" }

# Whether a pod may start, where agent.signatures is not "none": the signatures, and the
# names of owners.
key_prefix "farmd/signatures/" { policy = "list" }
key_prefix "farmd/names/" { policy = "list" }

# Where farms are, which tell the endpoints of services to the templates of pods.
key_prefix "farmd/farms/" { policy = "list" }

key_prefix "farmd/intent/@NODE@/" { policy = "list" }
key_prefix "farmd/reality/@SHARD@/@NODE@/" { policy = "write" }
key "farmd/agents/@NODE@" { policy = "write" }

# The agent registers its node while no workload runs there, by the sentinel of the node's intents. People own
# the node's record; a farm creates it if it is missing.
key "farmd/intent/@NODE@/.present" { policy = "write" }
key "farmd/nodes/@NODE@" { policy = "read" }

# One-time keys for this node's logs and for what its pods use, and for commands in its pods: the agent deletes each before it answers.
key_prefix "farmd/access/logs/@NODE@/" { policy = "write" }
key_prefix "farmd/access/usage/@NODE@/" { policy = "write" }
key_prefix "farmd/access/exec/@NODE@/" { policy = "write" }

# How these commands ended, which farms move to the audit log.
key_prefix "farmd/access/ends/@NODE@/" { policy = "write" }

session "@CONSUL@" { policy = "write" }
