"""Services: what people deploy, the plan of a change, and its operations (uncloud ``pkg/client/deploy``).

A service compiles to one controller or daemon set; a deployment changes the members of its owners while it
lasts. Everything that decides is pure: the preview that a person sees and the farm that acts use one planner.
"""
