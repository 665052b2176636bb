"""Rollouts of Knative Services as people ask for them by ``farmctl``."""
