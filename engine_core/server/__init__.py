"""The engine-core process: its busy loop, its frontends, its start-up."""
