"""Nodes: what people ask of them; later agent loss and drains."""
