# The agents of all nodes with one token: weaker than agent.hcl, because each of them can speak for any other
# node, and see what it runs. None can say what a node must run. Every node must be registered before its agent starts:
# farmctl node register NAME.
key "farmd/meta/cluster" { policy = "read" }
key_prefix "farmd/manifests/" { policy = "read" }

key_prefix "farmd/intent/" { policy = "list" }
key_prefix "farmd/reality/" { policy = "write" }
key_prefix "farmd/agents/" { policy = "write" }
key_prefix "farmd/nodes/" { policy = "read" }

session_prefix "" { policy = "write" }
