# farmctl job start: asks for jobs of job templates, by their declared parameters and input alone.
#
# A starter writes starts and reads the answers of farms, and nothing else: no template, no job, no pod. A rule for
# "farmd/starts/NAME/" in place of the first one, and for "farmd/started/NAME/", allows one template alone.
key_prefix "farmd/starts/" { policy = "write" }
key_prefix "farmd/started/" { policy = "list" }

# The sentinel of the starts, which farms need: without this rule, a starter could remove it.
key "farmd/starts/.present" { policy = "read" }
