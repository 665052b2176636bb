"""The kind of work ``catalog``: the pods of services in Consul's own catalogue, behind farmd's fence."""
