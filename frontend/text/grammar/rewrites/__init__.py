"""JSON schemas that llguidance does not serve, as schemas that it does and that allow nothing more."""
