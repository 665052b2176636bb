"""The node agent: intent to reality."""
