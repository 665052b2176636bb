# What docker-compose.yml tells Consul's servers: nothing without a token.
acl {
  enabled                  = true
  default_policy           = "deny"
  enable_token_persistence = true
}
disable_update_check = true
