"""Configuration: sections and fields, where each value comes from, and the report on them."""
