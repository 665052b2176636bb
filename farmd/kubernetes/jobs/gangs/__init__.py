"""Schedulers of gangs, as data: one file a flavour."""
