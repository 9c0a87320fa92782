"""What every rljob process agrees on: manifest, resolved configs, types, errors, names and the wire; nothing heavy."""

__version__ = "0.1.0"
