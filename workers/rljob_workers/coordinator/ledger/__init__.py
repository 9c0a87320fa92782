"""The ledger's transitions, by subject. Each public method is one transaction; none of them knows SQLite."""
