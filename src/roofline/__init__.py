"""How fast, how large and how dear an LLM is to serve on given hardware, and why."""

__version__ = "0.1.0"
