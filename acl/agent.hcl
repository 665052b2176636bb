# The agent of one node: a template, see README.md. @NODE@ is the node's name, @SHARD@ the first hex digit of
# that name's blake2b of one byte, @CONSUL@ the name of the Consul agent that it talks to.
#
# It reads what its own node must run and writes what its own node runs, nothing else of anybody.
key "farmd/meta/cluster" { policy = "read" }
key_prefix "farmd/manifests/" { policy = "read" }

key_prefix "farmd/intent/@NODE@/" { policy = "list" }
key_prefix "farmd/reality/@SHARD@/@NODE@/" { policy = "write" }
key "farmd/agents/@NODE@" { policy = "write" }

# It registers its node, as long as nothing runs there: the sentinel of its intents. The node's record
# belongs to people and is left to them; a farm creates it if nobody did.
key "farmd/intent/@NODE@/.present" { policy = "write" }
key "farmd/nodes/@NODE@" { policy = "read" }

session "@CONSUL@" { policy = "write" }
