"""python-consul2 over one pooled aiohttp transport; errors mapped to types."""
