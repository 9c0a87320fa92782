"""Agents that speak the OpenAI API: each episode has an address and a key of its own, every call becomes a sample."""
