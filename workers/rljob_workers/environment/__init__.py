"""The environment role: places with a shell, claimed by episodes and proven empty in between."""
