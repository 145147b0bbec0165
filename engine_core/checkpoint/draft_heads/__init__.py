"""Heads that draft from what a model has computed: what their config.json says of them."""
