# farmctl without changes: list, describe, explain, audit, top, doctor.
#
# This policy allows to read manifests, and so the environment variables of pods, the documents of apps, and
# config keys with their last versions. Of secrets it reads ciphertext.
key_prefix "farmd/" { policy = "list" }

# Reading the logs of pods: each request is made with a one-time key, of which Consul holds a hash. Without this
# rule nobody reads logs by this token.
key_prefix "farmd/access/logs/" { policy = "write" }

# The doctor compares the limits of the Consul agent that answers with what farmd needs.
agent_prefix "" { policy = "read" }

# The doctor tells which of Consul's servers is gone.
operator = "read"

# The doctor compares the entries in Consul's catalogue with the services. Consul leaves out what a token may not
# read: a narrower prefix hides other owners of a name or of a node. Delete both rules where no service is there.
node_prefix "" { policy = "read" }
service_prefix "" { policy = "read" }
