"""The daemon, the node agent and the command line."""
