"""farmctl: parse, call, render; no logic."""
