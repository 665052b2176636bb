"""Services: what people deploy, the plan of a change, and its operations (uncloud ``pkg/client/deploy``).

A service compiles to one owner of pods; a deployment changes the members of its services' owners while it
lasts. Everything that decides is pure: the preview that a person sees and the farm that acts use one planner.
"""
