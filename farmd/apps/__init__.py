"""Apps: bundles of objects that farms make, keep as their files say, and collect (KubeVela ``dispatch``)."""
