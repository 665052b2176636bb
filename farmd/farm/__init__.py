"""The claim engine: session, claims, one supervised worker an item."""
