"""The objects that farmd puts into a cluster, as YAML."""
