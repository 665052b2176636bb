"""Services: what people do with them, and which pods serve at the moment."""
