"""The one-machine cluster behind ``farmd dev`` and ``make demo``."""
