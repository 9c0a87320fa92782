"""The API server: its client, what of its objects is cached, watches, and lists that correct them."""
