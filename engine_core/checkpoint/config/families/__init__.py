"""Model families: how each one's config.json is read, and what its layers are like; one file per family."""
