"""Folders of object stores: what is in them, files sent and fetched, and a test that keys open them."""
