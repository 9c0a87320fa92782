"""Fakes and makers for tests. Everything here says that it is a fake."""
