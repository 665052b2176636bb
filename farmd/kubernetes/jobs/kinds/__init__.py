"""Kinds of custom resources that are jobs, as data: one file a kind."""
