"""Builders of the role configs, one file per role; `rljob_api.resolve` calls them on a manifest without problems."""
