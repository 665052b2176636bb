"""Jobs on nodes: their worker, and its members as pods and intents in Consul."""
