"""The operations of layers that only some models have, or only some requests change, on any device."""
