"""The Consul client: python-consul2 over one pooled aiohttp transport, with typed errors."""
