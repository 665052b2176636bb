"""Compose files become specs of services (https://compose-spec.io).

Each key of the specification has a verdict (``farmd.compose.verdicts``): supported, changed, warned or
refused. No key is dropped in silence, and no file ends in a traceback.
"""
