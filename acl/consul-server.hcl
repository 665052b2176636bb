# What docker-compose.yml tells Consul's servers: nothing without a token, and elections that sessions of farms outlive.
acl {
  enabled                  = true
  default_policy           = "deny"
  enable_token_persistence = true
}
performance {
  raft_multiplier = 1
}
disable_update_check = true
