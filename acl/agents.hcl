# The agents of all nodes with one token: weaker than agent.hcl, because each agent can read and write any
# other node's reality and presence, and end every session. No agent can write an intent. Register every node before its agent starts:
# farmctl node register NAME.
key "farmd/meta/cluster" { policy = "read" }
key_prefix "farmd/manifests/" { policy = "read" }
key_prefix "farmd/signatures/" { policy = "list" }
key_prefix "farmd/names/" { policy = "list" }
key_prefix "farmd/farms/" { policy = "list" }

key_prefix "farmd/intent/" { policy = "list" }
key_prefix "farmd/reality/" { policy = "write" }
key_prefix "farmd/agents/" { policy = "write" }
key_prefix "farmd/nodes/" { policy = "read" }
key_prefix "farmd/access/logs/" { policy = "write" }
key_prefix "farmd/access/usage/" { policy = "write" }
# Not access/exec/: with it one agent could run commands on all nodes. So farmctl pod exec needs agent.hcl.

session_prefix "" { policy = "write" }
