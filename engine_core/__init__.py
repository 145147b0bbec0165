"""engine-core: the busy loop that schedules requests onto workers; imports no torch."""
