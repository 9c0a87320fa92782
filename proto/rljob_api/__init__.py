"""What every rljob process agrees on: the manifest, the resolved configs, types, errors, names and the wire. No heavy imports."""

__version__ = "0.1.0"
