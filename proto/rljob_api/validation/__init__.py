"""From a manifest's text to a checked RLJob: parsing, rules, messages of errors, other systems' names, and the CRD."""
