"""The shared copies of the store that all workers of a farm read from, and indexes over them."""
