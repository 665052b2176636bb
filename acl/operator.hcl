# farmctl with changes. It does not write the agents' records (reality, agents), the farms' presence (farms)
# and the cluster's own records (meta), but for which cluster of Kubernetes a name stands for.
key_prefix "farmd/" { policy = "list" }

# People's records, with their audit records.
key_prefix "farmd/rcs/" { policy = "write" }
key_prefix "farmd/daemonsets/" { policy = "write" }
key_prefix "farmd/services/" { policy = "write" }
key_prefix "farmd/rollouts/" { policy = "write" }
key_prefix "farmd/deployments/" { policy = "write" }
key_prefix "farmd/jobs/" { policy = "write" }
key_prefix "farmd/apps/" { policy = "write" }
key_prefix "farmd/trackers/" { policy = "write" }
key_prefix "farmd/runs/" { policy = "write" }
key_prefix "farmd/schedules/" { policy = "write" }
key_prefix "farmd/jobtemplates/" { policy = "write" }
key_prefix "farmd/starts/" { policy = "write" }
key_prefix "farmd/history/" { policy = "write" }
key_prefix "farmd/names/" { policy = "write" }
key_prefix "farmd/manifests/" { policy = "write" }
key_prefix "farmd/signatures/" { policy = "write" }
key_prefix "farmd/nodes/" { policy = "write" }
key_prefix "farmd/failsafe/" { policy = "write" }
key_prefix "farmd/audit/" { policy = "write" }
key_prefix "farmd/meta/kubernetes/" { policy = "write" }

# Config keys, the values that manifests refer to, and their last versions.
key_prefix "farmd/config/" { policy = "write" }
key_prefix "farmd/config-history/" { policy = "write" }

# Secrets, which farmctl encrypts before it writes them, and the recipients that can open them: a recipient that
# this token adds to a group can open what is sealed from then on.
key_prefix "farmd/secrets/" { policy = "write" }
key_prefix "farmd/secret-versions/" { policy = "write" }
key_prefix "farmd/secret-groups/" { policy = "write" }

# Every edit checks that there is no mutation lock, for which Consul needs the right to write it, and --force
# deletes it. The item's own lock has the same prefix, so a rule cannot distinguish the two.
key_prefix "farmd/locks/" { policy = "write" }

# doctor --fix removes records without an owner: statuses, work, pods, intents, reservations. pod restart counts
# in the pod's intent.
key_prefix "farmd/status/" { policy = "write" }
key_prefix "farmd/work/" { policy = "write" }
key_prefix "farmd/pods/" { policy = "write" }
key_prefix "farmd/intent/" { policy = "write" }
key_prefix "farmd/reserved/" { policy = "write" }

# Reading the logs of pods: each request is made with a one-time key, of which Consul holds a hash. Without this
# rule nobody reads logs by this token.
key_prefix "farmd/access/logs/" { policy = "write" }

# What the doctor tells of Consul's agent and servers.
agent_prefix "" { policy = "read" }
operator = "read"

# The doctor compares the entries in Consul's catalogue with the services. Consul leaves out what a token may not
# read: a narrower prefix hides other owners of a name or of a node. Delete both rules where no service is there.
node_prefix "" { policy = "read" }
service_prefix "" { policy = "read" }
