"""Agents that speak the APIs of OpenAI and Anthropic: an episode has an address and a key, its calls become samples."""
