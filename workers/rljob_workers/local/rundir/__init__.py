"""What a run leaves in its directory: identity, journal, history, logs, dumps. Reading takes bounded memory."""
