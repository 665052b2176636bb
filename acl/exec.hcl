# In addition to reader.hcl or operator.hcl, for people who may run commands in pods, copy files and connect to
# ports (farmctl pod exec, cp, port-forward), on nodes whose agents say agent.exec = true. Consul allows one
# prefix: a token with these rules may enter every such node. To allow a few, write one rule per node,
# "farmd/access/exec/NODE/". A command has the environment and the files of its pod, secrets included.
key_prefix "farmd/access/exec/" { policy = "write" }

# The audit record, which is written in the same transaction as the key.
key_prefix "farmd/audit/" { policy = "write" }
